"""Times of each transform, where a dataset or a collate function is made of callable parts.

NOTE [ Which parts are transforms ]

No library is known by name. A transform is a callable object that is reachable from the dataset: an attribute, or an element
of a list, tuple or dict that is one; and so on inside of it. That is how compositions are made everywhere. An object is
timed by its class, whose `__call__` is wrapped once and looks up the object's identity; so the object itself, and whoever
asks for its type, sees nothing new. What has no class of its own to wrap (a function, a lambda, a partial) is replaced in
the list or attribute that holds it, in a worker's copy only.

Times are inclusive and, separately, without what transforms inside of it took.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

MOST_FOUND = 200
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


class Transforms:
    """Every transform of one worker. `owns`: these objects are a copy that may be changed."""

    def __init__(self, roots: dict[str, Any], *, owns: bool) -> None:
        self._owns = owns
        self._clocks: dict[int, Clock] = {}
        self._kept: list[Any] = []  # an identity is one only while its object is there
        self._wrapped: dict[type, Any] = {}
        self._inside = [0]  # nanoseconds of transforms inside the one that runs, by depth
        self._seen: set[int] = set()
        for name, root in roots.items():
            self._walk(root, name, 0)

    def take(self) -> bytes:
        """What was measured since the last time; empty if nothing."""
        found: Taken = {}
        for clock in self._clocks.values():
            if clock.count:
                found[clock.path, clock.name] = (clock.count, clock.total, clock.own)
                clock.count = clock.total = clock.own = 0
        return pickle.dumps(found) if found else b""

    def remove(self) -> None:
        """Give the classes their own `__call__` back."""
        for kind, original in self._wrapped.items():
            with contextlib.suppress(TypeError, AttributeError):
                if original is None:
                    delattr(kind, "__call__")  # it was inherited
                else:
                    setattr(kind, "__call__", original)  # noqa: B010 - a class of the user's
        self._wrapped.clear()
        self._clocks.clear()

    # -- finding -----------------------------------------------------------------------------------------------------------

    def _walk(self, holder: Any, path: str, depth: int) -> None:
        if depth > DEEPEST or id(holder) in self._seen or len(self._clocks) >= MOST_FOUND:
            return
        self._seen.add(id(holder))
        for name, one, put in _children(holder):
            if isinstance(one, _PLAIN):
                continue
            where = f"{path}{name}"
            if callable(one) and not _is_data(one):
                self._time(one, where, put)
                self._walk(one, where, depth + 1)
            elif _is_data(one) or isinstance(one, (list, tuple, dict)):
                self._walk(one, where, depth + 1)

    def _time(self, one: Any, path: str, put: Callable[[Any], None]) -> None:
        if id(one) in self._clocks:
            return
        clock = Clock(path, _name(one))
        if self._wrap(type(one)):
            self._kept.append(one)
            self._clocks[id(one)] = clock
        elif self._owns:
            with contextlib.suppress(Exception):  # a user's list or attribute may refuse
                put(self._replacement(one, clock))
                self._kept.append(one)
                self._clocks[id(one)] = clock

    def _wrap(self, kind: type) -> bool:
        if kind in self._wrapped:
            return True
        call: Any = getattr(kind, "__call__")  # noqa: B004, B009 - of the class, not of the object
        if not isinstance(call, types.FunctionType):
            return False  # a function, a partial, a class of C
        clocks, measure = self._clocks, self._measure

        @functools.wraps(call)
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            clock = clocks.get(id(self))
            return call(self, *args, **kwargs) if clock is None else measure(clock, call, self, *args, **kwargs)

        own = vars(kind).get("__call__")
        try:
            setattr(kind, "__call__", timed)  # noqa: B010 - a class of the user's
        except (TypeError, AttributeError):
            return False
        self._wrapped[kind] = own
        return True

    def _replacement(self, function: Any, clock: Clock) -> Any:
        measure = self._measure

        def timed(*args: Any, **kwargs: Any) -> Any:
            return measure(clock, function, *args, **kwargs)

        with contextlib.suppress(Exception):  # a partial has no name
            functools.update_wrapper(timed, function)
        return timed

    def _measure(self, clock: Clock, call: Any, *args: Any, **kwargs: Any) -> Any:
        inside = self._inside
        inside.append(0)
        began = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            took = time.perf_counter_ns() - began
            within = inside.pop()
            inside[-1] += took
            clock.count += 1
            clock.total += took
            clock.own += took - within


def _children(holder: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """What an object holds: how to write it, the thing, and how to put another in its place."""
    if isinstance(holder, dict):
        for key, value in list(holder.items())[:MOST_FOUND]:
            yield f"[{key!r}]", value, functools.partial(holder.__setitem__, key)
        return
    if isinstance(holder, (list, tuple)):
        # a list of a million file names holds no transforms; its first elements tell
        for at, value in enumerate(holder[:MOST_FOUND]):
            if at >= 8 and not callable(value):
                return
            put = holder.__setitem__ if isinstance(holder, list) else _refuse
            yield f"[{at}]", value, functools.partial(put, at)
        return
    known = getattr(holder, "__dict__", None)
    if not isinstance(known, dict):
        return
    for name, value in list(known.items())[:MOST_FOUND]:
        if name == "_modules" and isinstance(value, dict):  # torch keeps modules there, and calls them by their names
            yield "", value, _refuse_one
        else:
            yield f".{name}", value, functools.partial(setattr, holder, name)


def _refuse(_: int, __: Any) -> None:
    raise TypeError("a tuple cannot be changed")


def _refuse_one(_: Any) -> None:
    raise TypeError("not to be replaced")


def _is_data(one: Any) -> bool:
    """Whether an object gives samples, as a dataset inside a dataset does."""
    kind = type(one)
    return (
        hasattr(kind, "__getitem__")
        and hasattr(kind, "__dict__")
        and not isinstance(one, (list, tuple, dict))
        and not (callable(one))
    )


def _name(one: Any) -> str:
    if isinstance(one, functools.partial):
        return f"partial({_name(one.func)})"
    return str(getattr(one, "__name__", None) or type(one).__name__)
