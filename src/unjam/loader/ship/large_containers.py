"""Crowds: the large containers of plain values that a dataset holds.

NOTE [ Crowds ]

Millions of strings, numbers and dicts take seconds to pickle. Between two epochs they are nearly always the same, and that can be known
exactly without looking at every value: a dict has a version that changes with each change of it, and a list or a set is unchanged while the same
objects stand in it. So, of a container that was sent, this process keeps the dicts with their versions, and the lists and sets with
what they held; holding these also keeps the addresses from becoming another object's. Values that cannot be changed need no look.

A crowd is sent apart from what holds it. An object that is also held from outside would be two objects then, so a container with such an object
inside is no crowd: it goes with the rest.
"""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unjam.shared.share import slots
from unjam.system.memory import same_bytes

# a container with fewer items than this is not worth a look of its own
FEWEST = 10_000
_MUTABLE = (list, set)
_CHUNK = 50_000
LONG = 1000
# where a dict's version lies in it: behind the count, the type and the number of its items
_VERSION_AT = 24


def supported() -> bool:
    """Whether this interpreter's dicts have versions."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info < (3, 14)
        and ctypes.sizeof(ctypes.c_void_p) == 8
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "gettotalrefcount")
        and _versions_change()
    )


class _NotPlain(Exception):
    pass


class _PlainPickler(pickle.Pickler):
    """Pickles values of Python's own types only."""

    def reducer_override(self, obj: Any) -> Any:
        raise _NotPlain(type(obj).__qualname__)


@dataclass(slots=True, eq=False)
class Crowd:
    """One container as it was when it was sent. See NOTE [ Crowds ]."""

    container: Any
    dicts: list[dict[Any, Any]] = field(default_factory=list)
    # where the dicts lie, and their versions; where the lists and sets lie
    places: Any = None
    versions: Any = None
    lists: list[Any] = field(default_factory=list)
    list_places: Any = None
    # how many references each dict, and each list, had when all was taken
    counts: tuple[Any, ...] = ()
    held: list[Any] = field(default_factory=list)

    def forget(self) -> None:
        """Let go of what it holds, so that the container can be taken anew: a second holder would speak against that."""
        self.dicts, self.places, self.versions = [], None, None
        self.lists, self.list_places, self.held, self.counts = [], None, [], ()

    def held_elsewhere(self) -> bool:
        """Whether anything in it that can be changed is held by somebody else than its container (the outermost one may be)."""
        own = np.uint64(id(self.container))
        for number, places in enumerate((self.places, self.list_places)):
            if places is not None:
                # at first each is held by its container and by one list here; later by what was counted then
                usual = self.counts[number] if self.counts else 2
                if bool(((_counts(places) > usual) & (places != own)).any()):
                    return True
        return False

    def unchanged(self) -> bool:
        """Whether the container is exactly what it was, and still nobody else holds a part of it."""
        if self.held_elsewhere():
            return False
        if len(self.dicts) and not np.array_equal(_gathered(self.places, _VERSION_AT), self.versions):
            return False
        at = 0
        for some in _together(self.lists):
            # a long list is looked at where it lies
            now = some[0] if len(some) == 1 and type(some[0]) is list else gc.get_referents(*some)
            if at + len(now) > len(self.held) or not same_bytes(_items(now), _items(self.held) + 8 * at, 8 * len(now)):
                return False
            at += len(now)
        return at == len(self.held)


def taken(container: Any) -> tuple[Crowd, bytes] | None:
    """A container as a crowd, with its stream; None: it is none."""
    file = io.BytesIO()
    try:
        # protocol 4 has no way of its own for bytearrays, which can be changed and have no version
        _PlainPickler(file, 4).dump(container)
    except (_NotPlain, RecursionError, pickle.PicklingError, TypeError, ValueError):
        return None
    crowd = Crowd(container)
    level: list[Any] = [container]
    while level:
        dicts = [one for one in level if type(one) is dict]
        crowd.dicts += dicts
        crowd.lists += [one for one in level if type(one) in _MUTABLE]
        inner = itertools.chain(itertools.chain.from_iterable(map(dict.values, dicts)), *_others(level))
        level = [one for one in inner if type(one) in _INSIDE]
        del dicts
    if crowd.lists:
        crowd.list_places = _places(crowd.lists)
    if crowd.dicts:
        crowd.places = _places(crowd.dicts)
        crowd.versions = _gathered(crowd.places, _VERSION_AT)
    if crowd.held_elsewhere():
        return None
    for some in _together(crowd.lists):
        crowd.held += some[0] if len(some) == 1 and type(some[0]) is list else gc.get_referents(*some)
    crowd.counts = tuple(None if some is None else _counts(some) for some in (crowd.places, crowd.list_places))
    return crowd, file.getvalue()


def _together(lists: list[Any]) -> Iterator[list[Any]]:
    """Long lists alone, the others many at a time; always in the same order."""
    short: list[Any] = []
    for one in lists:
        if len(one) >= LONG and type(one) is list:
            yield [one]
            continue
        short.append(one)
        if len(short) == _CHUNK:
            yield short
            short = []
    if short:
        yield short


_INSIDE = frozenset({list, dict, tuple, set, frozenset})


def _others(level: list[Any]) -> Iterator[Any]:
    return (one for one in level if type(one) is not dict)


def find(root: Any) -> list[Any]:
    """The containers below an object that may be crowds, each once."""
    if not supported():
        return []
    found: dict[int, Any] = {}
    for slot in slots(root, "dataset"):
        if type(slot.value) in (list, dict, tuple) and len(slot.value) >= FEWEST:
            found.setdefault(id(slot.value), slot.value)
    return list(found.values())


# -- memory ------------------------------------------------------------------------------------------------------------------


def _places(objects: list[Any]) -> Any:
    """The addresses of objects."""
    return np.fromiter(map(id, objects), np.uint64, len(objects))


def _gathered(addresses: Any, offset: int) -> Any:
    """The 8 bytes at an offset in each of the objects at these addresses."""
    low, high = int(addresses.min()), int(addresses.max())
    words = np.ctypeslib.as_array((ctypes.c_uint64 * ((high - low) // 8 + offset // 8 + 1)).from_address(low))
    return words[((addresses - np.uint64(low)) >> np.uint64(3)).astype(np.int64) + offset // 8]


def _counts(addresses: Any) -> Any:
    """Reference counts, 32 bits of them; one that is never counted has the largest."""
    return _gathered(addresses, 0) & np.uint64(0xFFFFFFFF)


def _items(some: list[Any]) -> int:
    """Where a list has its items."""
    return ctypes.c_uint64.from_address(id(some) + 24).value


def _versions_change() -> bool:
    """Whether what is read is a version: it differs after every change, and between two dicts."""
    one: dict[Any, Any] = {"a": 1}
    other: dict[Any, Any] = {"a": 1}
    places = _places([one, other])
    before = _gathered(places, _VERSION_AT).tolist()
    one["a"] = 2
    after = _gathered(places, _VERSION_AT).tolist()
    one.pop("a")
    last = _gathered(places, _VERSION_AT).tolist()
    own = {before[0], after[0], last[0]}
    return len(own) == 3 and before[1] == after[1] == last[1] and before[1] not in own
