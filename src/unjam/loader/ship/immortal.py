"""Makes plain objects immortal, so that forked processes can read them without copying them.

Reading a Python object writes its reference count, so the kernel copies its memory page for the process
that reads. Since Python 3.12, an object with the same reference count as `None` is immortal: its count
never changes. A template sets that count on every plain object it holds. These objects are then never
freed, which is fine in a template.

NOTE [ Reading counts ]

An object's address is its `id`. Its count lies at the start, its type after the count. We read and
write millions of them with numpy, through a view of the address range that a chunk spans, and touch
nothing in between. The count shows which objects were visited. We read the value to write from `None`.
We do nothing on other interpreters, on builds with reference tracing, and on free-threaded builds, whose
counts lie elsewhere.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

_CONTAINERS = (list, dict, tuple, set, frozenset)
_LEAVES = (str, bytes, int, float, complex, bool, type(None), bytearray)
# objects per call of gc.get_referents
CHUNK = 20_000
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def known_layout() -> bool:
    """Return whether objects of this interpreter have the memory layout we know."""
    return (
        sys.implementation.name == "cpython"
        and ctypes.sizeof(ctypes.c_void_p) == 8
        and sys.byteorder == "little"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "gettotalrefcount")
    )


def supported() -> bool:
    """Return whether this interpreter has immortal objects, in the memory layout we know."""
    return sys.version_info >= (3, 12) and known_layout() and _immortal_count() >= 1 << 31


def make_immortal(roots: Iterable[Any]) -> int:
    """Make every plain object below `roots` immortal; return how many there were.

    We visit the attributes of other objects too, but leave those objects mortal.
    """
    if not supported():
        return 0
    number = _immortal_count()
    containers = np.array(sorted(map(id, _CONTAINERS)), np.uint64)
    plain = np.array(sorted(map(id, _CONTAINERS + _LEAVES)), np.uint64)
    total, opened = 0, set[int]()
    pending: list[list[Any]] = [[tuple(roots)]]
    while pending:
        parts = _parts(pending.pop())
        if not parts:
            continue
        addresses = np.fromiter(map(id, parts), np.uint64, len(parts))
        kinds = read_words(addresses, 8)
        is_plain = np.isin(kinds, plain)
        counts, places = _words(addresses, np.uint32)
        fresh = is_plain & (counts[places] < np.uint32(1 << 31))
        counts[places[fresh]] = number
        total += int(fresh.sum())
        found = [parts[at] for at in np.flatnonzero(fresh & np.isin(kinds, containers)).tolist()]
        found += _attributes([parts[at] for at in np.flatnonzero(~is_plain).tolist()], opened)
        pending += [found[at : at + CHUNK] for at in range(0, len(found), CHUNK)]
    return total


def _immortal_count() -> int:
    return ctypes.c_uint32.from_address(id(None)).value


def read_words(addresses: Any, offset: int) -> Any:
    """Read the 8 bytes at an offset in each of the objects at these addresses."""
    words, places = _words(addresses + np.uint64(offset), np.uint64)
    return words[places]


def _words(addresses: Any, word: type[np.unsignedinteger[Any]]) -> tuple[Any, Any]:
    """Return the memory that these addresses span, as an array of words, and the index of each address in it."""
    low, size = int(addresses.min()), np.dtype(word).itemsize
    places = ((addresses - np.uint64(low)) // np.uint64(size)).astype(np.int64)
    memory: Any = (ctypes.c_uint8 * ((int(places.max()) + 1) * size)).from_address(low)
    return np.frombuffer(memory, word), places


def _parts(chunk: list[Any]) -> list[Any]:
    """Return the objects in containers.

    gc.get_referents omits the keys of a dict with only str keys, so we add dict keys, each once.
    """
    parts = gc.get_referents(*chunk)
    dicts = [one for one in chunk if type(one) is dict]
    if dicts:
        parts += set(itertools.chain.from_iterable(dicts))
    return parts


def _attributes(objects: list[Any], opened: set[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the attributes of objects that are not plain. Skip classes, modules and functions.

    Since Python 3.13 gc.get_referents omits the values of such a dict: they lie in the object.
    """
    for one in objects:
        if id(one) in opened or isinstance(one, _CODE):
            continue
        opened.add(id(one))
        try:
            attributes = object.__getattribute__(one, "__dict__")
        except AttributeError:
            continue
        if type(attributes) is dict:
            yield (attributes, *attributes.values())
