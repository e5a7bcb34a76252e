"""Plain objects whose references are no longer counted, so that forked processes can read them without copying them.

Reading a Python object writes its reference count, and the system copies the page that it lies on into the process that wrote. From Python 3.12
on an object with the reference count that `None` has is never written to. A template gives that count to every plain object that it holds;
they are never freed then, which is what a template is for.

NOTE [ Reading counts ]

An object's address is its `id`, its count lies at its beginning, its type behind it. Millions of them are read and written with numpy, through
a view of the address range that a chunk of them spans; nothing in between is touched. The count tells which objects were visited. The number
to write is read from `None`. Other interpreters, builds with reference tracing, and builds without a global lock (whose counts lie elsewhere)
are left alone.
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
# objects whose parts are asked for together
CHUNK = 20_000
_COUNT_BYTES, _TYPE_AT = 4, 8
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def supported() -> bool:
    """Whether this interpreter has objects that are not counted, in the layout that is known here."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info >= (3, 12)
        and ctypes.sizeof(ctypes.c_void_p) == 8
        and sys.byteorder == "little"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "gettotalrefcount")
        and _never_counted_number() >= 1 << 31
    )


def never_count(roots: Iterable[Any]) -> int:
    """Stop counting every plain object below these; how many there were. Other objects are looked into and go on being counted."""
    if not supported():
        return 0
    number = _never_counted_number()
    containers = np.array(sorted(map(id, _CONTAINERS)), np.uint64)
    plain = np.array(sorted(map(id, _CONTAINERS + _LEAVES)), np.uint64)
    total, opened = 0, set[int]()
    pending: list[list[Any]] = [[tuple(roots)]]
    while pending:
        parts = _parts(pending.pop())
        if not parts:
            continue
        addresses = np.fromiter(map(id, parts), np.uint64, len(parts))
        low, high = int(addresses.min()), int(addresses.max())
        words = np.ctypeslib.as_array((ctypes.c_uint32 * ((high - low) // 4 + 4)).from_address(low))
        places = ((addresses - np.uint64(low)) >> np.uint64(2)).astype(np.int64)
        kinds = _types(words, places)
        is_plain = np.isin(kinds, plain)
        fresh = is_plain & (words[places] < np.uint32(1 << 31))
        words[places[fresh]] = number
        total += int(fresh.sum())
        found = [parts[at] for at in np.flatnonzero(fresh & np.isin(kinds, containers)).tolist()]
        found += _attributes([parts[at] for at in np.flatnonzero(~is_plain).tolist()], opened)
        pending += [found[at : at + CHUNK] for at in range(0, len(found), CHUNK)]
    return total


def _never_counted_number() -> int:
    return ctypes.c_uint32.from_address(id(None)).value


def _types(words: Any, places: Any) -> Any:
    """The addresses of the types of the objects at these places."""
    low = words[places + _TYPE_AT // _COUNT_BYTES].astype(np.uint64)
    high = words[places + _TYPE_AT // _COUNT_BYTES + 1].astype(np.uint64)
    return low | (high << np.uint64(32))


def _parts(chunk: list[Any]) -> list[Any]:
    """What containers hold. A dict with texts as keys does not tell of them, so they are asked for, each equal one once."""
    parts = gc.get_referents(*chunk)
    dicts = [one for one in chunk if type(one) is dict]
    if dicts:
        parts += set(itertools.chain.from_iterable(dicts))
    return parts


def _attributes(objects: list[Any], opened: set[int]) -> Iterator[tuple[dict[str, Any]]]:
    """The attributes of objects that are no plain values. Classes, modules and functions are nobody's data."""
    for one in objects:
        if id(one) in opened or isinstance(one, _CODE):
            continue
        opened.add(id(one))
        try:
            attributes = object.__getattribute__(one, "__dict__")
        except AttributeError:
            continue
        if type(attributes) is dict:
            yield (attributes,)
