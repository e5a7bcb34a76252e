"""Times each transform of a dataset or collate function that consists of callable parts.

NOTE [ Which parts are transforms ]

We know no library by name. A transform is a callable object that is reachable from the dataset or
the collate function: through attributes and through elements of lists, tuples and dicts, also
inside other transforms. All libraries compose transforms this way. To time an object we wrap
`__call__` of its class, once; the wrapper looks up the object by its identity. So the object and
its type stay the same. We do not time a callable without a Python class to wrap (a function, a
lambda, a partial); the profile by line covers those.

For each transform we record the inclusive time, and the time without nested transforms.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from unjam.system.object_graph import attributes, items

MAX_FOUND = 200
# limits: objects visited in all, elements visited per container
MAX_SEEN, MAX_ELEMENTS = 2000, 200
MAX_DEPTH = 6
_PLAIN = (str, bytes, int, float, complex, bool, type(None), types.ModuleType, type)

# (path, name) -> (calls, inclusive nanoseconds, nanoseconds without nested transforms)
TransformTimes = dict[tuple[str, str], tuple[int, int, int]]


class TransformClock:
    """The times of one transform."""

    __slots__ = ("count", "name", "own", "path", "total")

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.count = self.total = self.own = 0


class _Running(threading.local):
    """Per thread: nanoseconds of nested transforms at each depth, and the clocks now running."""

    def __init__(self) -> None:
        self.inside = [0]
        self.clocks: list[TransformClock] = []


# class -> (its own `__call__`, or None if inherited; who times it)
_wrapped: dict[type, tuple[Any, list[Transforms]]] = {}


class Transforms:
    """Times every transform reachable from `roots`. `remove` restores the classes."""

    def __init__(self, roots: dict[str, Any]) -> None:
        self.clocks: dict[int, TransformClock] = {}
        self._timed_objects: list[Any] = []  # keeps them alive, so that each id stays unique
        self._running = _Running()
        self._seen: set[int] = set()
        for name, root in roots.items():
            self._walk(root, name, 0)

    def take(self) -> bytes:
        """Return the times since the last call, pickled; empty if there are none."""
        found: TransformTimes = {}
        for clock in self.clocks.values():
            if clock.count:
                found[clock.path, clock.name] = (clock.count, clock.total, clock.own)
                clock.count = clock.total = clock.own = 0
        return pickle.dumps(found) if found else b""

    def remove(self) -> None:
        """Restore `__call__` of each class that no other instance still times."""
        for kind in list(_wrapped):
            original, users = _wrapped[kind]
            if self not in users:
                continue
            users.remove(self)
            if users:
                continue
            del _wrapped[kind]
            with contextlib.suppress(Exception):  # a user's metaclass may raise
                if original is None:
                    delattr(kind, "__call__")
                else:
                    setattr(kind, "__call__", original)  # noqa: B010 - a user's class
        self.clocks.clear()

    def measure(self, clock: TransformClock, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call, and add the time to `clock`."""
        running = self._running
        if clock in running.clocks:
            return call(*args, **kwargs)  # super().__call__(): the outer call already counts its time
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

    # -- finding -----------------------------------------------------------------------------------------------------

    def _walk(self, holder: Any, path: str, depth: int) -> None:
        full = len(self._seen) >= MAX_SEEN or len(self.clocks) >= MAX_FOUND
        if depth > MAX_DEPTH or id(holder) in self._seen or full:
            return
        self._seen.add(id(holder))
        # A user object may raise when we inspect it; then we skip it.
        with contextlib.suppress(Exception):
            for name, one in _children(holder):
                with contextlib.suppress(Exception):
                    self._consider(one, f"{path}{name}", depth)

    def _consider(self, one: Any, path: str, depth: int) -> None:
        kind = type(one)
        if issubclass(kind, _PLAIN):
            return
        if id(one) not in self.clocks and self._wrap(kind):
            self._timed_objects.append(one)
            self.clocks[id(one)] = TransformClock(path, kind.__name__)
        self._walk(one, path, depth + 1)

    def _wrap(self, kind: type) -> bool:
        if kind in _wrapped:
            users = _wrapped[kind][1]
            if self not in users:
                users.append(self)
            return True
        call = inspect.getattr_static(kind, "__call__", None)
        if not isinstance(call, types.FunctionType):
            return False  # a function, a partial, a C class, a static method
        own = vars(kind).get("__call__")
        users = [self]
        try:
            setattr(kind, "__call__", _timed(call, users))  # noqa: B010 - a user's class
        except Exception:  # noqa: BLE001 - a user's metaclass may raise
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
    """Yield what an object holds, each with the text that leads from the object to it."""
    if not isinstance(holder, (dict, list, tuple)):
        for step, value, *_ in attributes(holder, MAX_ELEMENTS, slots=False):
            # torch keeps submodules in the dict `_modules`; leave that name out of the path.
            yield "" if step == "._modules" else step, value
        return
    for at, (step, value, *_) in enumerate(items(holder, MAX_ELEMENTS)):
        # A list of a million file names holds no transforms: stop early at a plain value.
        if at >= 8 and isinstance(value, _PLAIN) and not isinstance(holder, dict):
            return
        yield step[:80], value
