"""Times of each transform, where a dataset or a collate function is made of callable parts.

NOTE [ Which parts are transforms ]

No library is known by name. A transform is a callable object that is reachable from the dataset: an attribute, or an element
of a list, tuple or dict that is one; and so on inside of it. That is how compositions are made everywhere. An object is
timed by its class, whose `__call__` is wrapped once and looks up the object's identity; so the object itself, and whoever
asks for its type, sees nothing new. Nothing is replaced: what has no class of its own to wrap (a function, a lambda, a
partial) is not timed, and shows among the lines.

Times are inclusive and, separately, without what transforms inside of it took.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import pickle
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

MOST_FOUND = 200
# objects that are looked at, and elements of one container
MOST_SEEN, MOST_ELEMENTS = 2000, 200
DEEPEST = 6
_PLAIN = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, type)

# path and name, then how often, nanoseconds in all, and without those inside
Taken = dict[tuple[str, str], tuple[int, int, int]]


class Clock:
    """The times of one transform."""

    __slots__ = ("count", "name", "own", "path", "total")

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.count = self.total = self.own = 0


class _Running(threading.local):
    """In each thread: nanoseconds of transforms inside the one that runs, by depth; and whose clocks run."""

    def __init__(self) -> None:
        self.inside = [0]
        self.clocks: list[Clock] = []


# by class: its own `__call__` (None: inherited) and who wants it wrapped; several loaders may, at once
_wrapped: dict[type, tuple[Any, list[Transforms]]] = {}


class Transforms:
    """Every transform that is reachable from some objects. `remove` leaves their classes as they were."""

    def __init__(self, roots: dict[str, Any]) -> None:
        self.clocks: dict[int, Clock] = {}
        self._kept: list[Any] = []  # an identity is one only while its object is there
        self._running = _Running()
        self._seen: set[int] = set()
        for name, root in roots.items():
            self._walk(root, name, 0)

    def take(self) -> bytes:
        """What was measured since the last time; empty if nothing."""
        found: Taken = {}
        for clock in self.clocks.values():
            if clock.count:
                found[clock.path, clock.name] = (clock.count, clock.total, clock.own)
                clock.count = clock.total = clock.own = 0
        return pickle.dumps(found) if found else b""

    def remove(self) -> None:
        """Give the classes their own `__call__` back, where nobody else times them."""
        for kind in list(_wrapped):
            original, users = _wrapped[kind]
            if self not in users:
                continue
            users.remove(self)
            if users:
                continue
            del _wrapped[kind]
            with contextlib.suppress(Exception):  # a user's metaclass
                if original is None:
                    delattr(kind, "__call__")
                else:
                    setattr(kind, "__call__", original)  # noqa: B010 - a class of the user's
        self.clocks.clear()

    def measure(self, clock: Clock, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call, and count the time."""
        running = self._running
        if clock in running.clocks:
            return call(*args, **kwargs)  # the class above it, called by this one
        running.clocks.append(clock)
        running.inside.append(0)
        began = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            took = time.perf_counter_ns() - began
            within = running.inside.pop()
            running.clocks.pop()
            running.inside[-1] += took
            clock.count += 1
            clock.total += took
            clock.own += took - within

    # -- finding -----------------------------------------------------------------------------------------------------------

    def _walk(self, holder: Any, path: str, depth: int) -> None:
        full = len(self._seen) >= MOST_SEEN or len(self.clocks) >= MOST_FOUND
        if depth > DEEPEST or id(holder) in self._seen or full:
            return
        self._seen.add(id(holder))
        # whatever an object of the user's does when it is looked at: it is left alone then
        with contextlib.suppress(Exception):
            for name, one in _children(holder):
                with contextlib.suppress(Exception):
                    self._consider(one, f"{path}{name}", depth)

    def _consider(self, one: Any, path: str, depth: int) -> None:
        kind = type(one)
        if issubclass(kind, _PLAIN):
            return
        if hasattr(kind, "__call__") and not _is_data(kind):  # noqa: B004 - of the class: the object may answer anything
            if id(one) not in self.clocks and self._wrap(kind):
                self._kept.append(one)
                self.clocks[id(one)] = Clock(path, kind.__name__)
            self._walk(one, path, depth + 1)
        elif _is_data(kind) or issubclass(kind, (list, tuple, dict)):
            self._walk(one, path, depth + 1)

    def _wrap(self, kind: type) -> bool:
        if kind in _wrapped:
            users = _wrapped[kind][1]
            if self not in users:
                users.append(self)
            return True
        call = inspect.getattr_static(kind, "__call__", None)
        if not isinstance(call, types.FunctionType):
            return False  # a function, a partial, a class of C, a static method
        own = vars(kind).get("__call__")
        users = [self]
        try:
            setattr(kind, "__call__", _timed(call, users))  # noqa: B010 - a class of the user's
        except Exception:  # noqa: BLE001 - a user's metaclass
            return False
        _wrapped[kind] = (own, users)
        return True


def _timed(call: Any, users: list[Transforms]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        for user in reversed(users):
            clock = user.clocks.get(id(self))
            if clock is not None:
                return user.measure(clock, call, self, *args, **kwargs)
        return call(self, *args, **kwargs)

    return timed


def _children(holder: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, and how to write it."""
    if isinstance(holder, dict):
        for key, value in itertools.islice(dict.items(holder), MOST_ELEMENTS):
            yield f"[{key!r}]" if isinstance(key, (str, int)) else "[…]", value
        return
    if isinstance(holder, (list, tuple)):
        # a list of a million file names holds no transforms; its first elements tell
        whole: Any = list if isinstance(holder, list) else tuple
        for at, value in enumerate(itertools.islice(whole.__iter__(holder), MOST_ELEMENTS)):
            if at >= 8 and isinstance(value, _PLAIN):
                return
            yield f"[{at}]", value
        return
    known = object.__getattribute__(holder, "__dict__")
    for name, value in itertools.islice(known.items(), MOST_ELEMENTS):
        # torch keeps modules in a dict, and calls them by their names
        yield "" if name == "_modules" else f".{name}", value


def _is_data(kind: type) -> bool:
    """Whether objects of a class give samples, as a dataset inside a dataset does."""
    container = issubclass(kind, (list, tuple, dict))
    return hasattr(kind, "__getitem__") and not container and not hasattr(kind, "__call__")  # noqa: B004 - as above
