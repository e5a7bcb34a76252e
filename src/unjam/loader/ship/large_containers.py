"""Finds large containers of plain values in a dataset, and tells whether they have changed.

NOTE [ Large containers ]

Millions of strings, numbers and dicts take seconds to pickle. Between two epochs they are nearly
always unchanged, and we can prove that without reading every value. A dict has a version that
changes with each write, and a list or set is unchanged while it holds the same objects. So for
each container that we sent, this process keeps the dicts with their versions, and the lists and
sets with their items. Our references also prevent the addresses from being reused. Immutable values
need no check.

We send a large container separately from the object that holds it. An object inside it that is also
referenced from outside would become two objects in the worker. So we send a container with such an
object together with the rest, not as a large container.
"""

from __future__ import annotations

import ctypes
import gc
import io
import itertools
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unjam.loader.ship.immortal import known_layout, read_words
from unjam.shared.plain import NotPlain, PlainPickler
from unjam.shared.share import locations
from unjam.system.memory import same_bytes

# Smaller containers aren't worth separate handling.
MIN_ITEMS = 10_000
_MUTABLE = (list, set)
_INSIDE = frozenset({list, dict, tuple, set, frozenset})
_CHUNK = 50_000
LONG_LIST = 1000
# offset of a dict's version: after reference count, type and number of items
_VERSION_AT = 24


def supported() -> bool:
    """Return whether dicts of this interpreter have versions that we can read."""
    return sys.version_info < (3, 14) and known_layout() and _versions_change()


@dataclass(slots=True, eq=False)
class LargeContainer:
    """One container, with what shows whether it has changed since it was sent."""

    container: Any
    dicts: list[dict[Any, Any]] = field(default_factory=list)
    # addresses and versions of the dicts; addresses of the lists and sets
    places: Any = None
    versions: Any = None
    lists: list[Any] = field(default_factory=list)
    list_places: Any = None
    lengths: Any = None  # of the lists and sets
    # reference counts of the dicts, and of the lists and sets, at the time of sending
    counts: tuple[Any, ...] = ()
    held: list[Any] = field(default_factory=list)

    def forget(self) -> None:
        """Drop our references, so that `snapshot` does not count them as references from outside."""
        self.dicts, self.places, self.versions = [], None, None
        self.lists, self.list_places, self.lengths, self.held, self.counts = [], None, None, [], ()

    def held_elsewhere(self) -> bool:
        """Return whether anything mutable in it is also referenced from outside.

        References to the outermost container itself are allowed.
        """
        own = np.uint64(id(self.container))
        for number, places in enumerate((self.places, self.list_places)):
            if places is not None:
                # At first two references: its container and our list. Later: the recorded counts.
                usual = self.counts[number] if self.counts else 2
                if bool(((_counts(places) > usual) & (places != own)).any()):
                    return True
        return False

    def unchanged(self) -> bool:
        """Return whether the container is unchanged and nothing outside references a part of it."""
        if self.held_elsewhere():
            return False
        if len(self.dicts) and not np.array_equal(read_words(self.places, _VERSION_AT), self.versions):
            return False
        # an item may have moved from one list to the next
        if len(self.lists) and not np.array_equal(_lengths(self.lists), self.lengths):
            return False
        at = 0
        for now in _items_in_chunks(self.lists):
            if at + len(now) > len(self.held) or not same_bytes(_items(now), _items(self.held) + 8 * at, 8 * len(now)):
                return False
            at += len(now)
        return at == len(self.held)


def snapshot(container: Any) -> tuple[LargeContainer, bytes] | None:
    """Return the container as a `LargeContainer` with its stream; None if it is not suitable."""
    file = io.BytesIO()
    try:
        # Protocol 4 has no opcode for bytearrays, so they raise NotPlain: they have no version.
        PlainPickler(file, 4).dump(container)
    except (NotPlain, RecursionError, pickle.PicklingError, TypeError, ValueError):
        return None
    large = LargeContainer(container)
    level: list[Any] = [container]
    while level:
        dicts = [one for one in level if type(one) is dict]
        large.dicts += dicts
        large.lists += [one for one in level if type(one) in _MUTABLE]
        others = (one for one in level if type(one) is not dict)
        parts = itertools.chain.from_iterable(itertools.chain(map(dict.values, dicts), others))
        level = [one for one in parts if type(one) in _INSIDE]
        del dicts
    if large.lists:
        large.list_places, large.lengths = _places(large.lists), _lengths(large.lists)
    if large.dicts:
        large.places = _places(large.dicts)
        large.versions = read_words(large.places, _VERSION_AT)
    if large.held_elsewhere():
        return None
    large.held = list(itertools.chain.from_iterable(_items_in_chunks(large.lists)))
    large.counts = tuple(None if some is None else _counts(some) for some in (large.places, large.list_places))
    return large, file.getvalue()


def _lengths(lists: list[Any]) -> Any:
    return np.fromiter(map(len, lists), np.int64, len(lists))


def _items_in_chunks(lists: list[Any]) -> Iterator[list[Any]]:
    """Yield the items of lists and sets, always in the same order: a long list itself, the others in chunks."""
    short: list[Any] = []
    for one in lists:
        if len(one) >= LONG_LIST and type(one) is list:
            yield one
            continue
        short.append(one)
        if len(short) == _CHUNK:
            yield gc.get_referents(*short)
            short = []
    if short:
        yield gc.get_referents(*short)


def find(root: Any) -> list[Any]:
    """Return the containers in an object that may be large containers, each once."""
    if not supported():
        return []
    found: dict[int, Any] = {}
    for part in locations(root):
        if type(part.value) in (list, dict, tuple) and len(part.value) >= MIN_ITEMS:
            found.setdefault(id(part.value), part.value)
    return list(found.values())


# -- memory ------------------------------------------------------------------------------------------------------------


def _places(objects: list[Any]) -> Any:
    """Return the addresses of objects."""
    return np.fromiter(map(id, objects), np.uint64, len(objects))


def _counts(addresses: Any) -> Any:
    """Read the low 32 bits of the reference counts; immortal objects have the largest."""
    return read_words(addresses, 0) & np.uint64(0xFFFFFFFF)


def _items(some: list[Any]) -> int:
    """Return the address of a list's array of items."""
    return ctypes.c_uint64.from_address(id(some) + 24).value


def _versions_change() -> bool:
    """Check that we read a version: it changes with every write and differs between dicts."""
    one: dict[Any, Any] = {"a": 1}
    other: dict[Any, Any] = {"a": 1}
    places = _places([one, other])
    before = read_words(places, _VERSION_AT).tolist()
    one["a"] = 2
    after = read_words(places, _VERSION_AT).tolist()
    one.pop("a")
    last = read_words(places, _VERSION_AT).tolist()
    own = {before[0], after[0], last[0]}
    return len(own) == 3 and before[1] == after[1] == last[1] and before[1] not in own
