"""A mapping that exists once in memory, however many processes read it.

Keys and values are two lists. The positions of the keys, sorted by hash, lead from a key to its
position in them. The hash is the same in every process, which Python's own hash of a string is not.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from numbers import Number
from typing import Any

import numpy as np

from unjam.shared.buffer import Buffer, CopiedByReference, Writer, open_file
from unjam.shared.columns import write_items
from unjam.shared.lists import SharedList, finish_file, open_list, read_side_objects
from unjam.shared.untrusted import damage_as_value_error


def stable_hash(key: Any) -> int:
    """A hash that is equal for equal keys, in every process; TypeError for unsupported keys."""
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, Number) and key.__hash__ is not None:
        return hash((hash(key),))  # a tuple's hash mixes the bits, and only the low ones are used
    if key is None:
        return 1
    if isinstance(key, tuple):
        return hash(tuple(map(stable_hash, key)))
    if isinstance(key, np.generic):
        return stable_hash(key.item())
    raise TypeError(
        f"a shared mapping's keys are strings, bytes, numbers, None and tuples of these, not {type(key).__qualname__}"
    )


class SharedDict(CopiedByReference, Mapping[Any, Any]):
    """A read-only dict in one shared buffer: `SharedDict(mapping)` or `SharedDict(pairs)`.

    It keeps the order of the pairs. Each access makes a new value that equals the original one.
    `path`, `open` and pickling work as for `SharedList`.
    """

    __slots__ = (
        "__weakref__",
        "_begins",
        "_buffer",
        "_head",
        "_keys",
        "_mask",
        "_positions",
        "_side_objects",
        "_values",
    )
    __hash__ = None  # type: ignore[assignment] # as a dict's
    _buffer: Buffer
    _keys: SharedList
    _values: SharedList
    _head: dict[str, Any]
    _side_objects: list[Any]
    # the positions of all keys, sorted by the low bits of their hashes; where those of each hash begin
    _positions: memoryview
    _begins: memoryview
    _mask: int

    def __new__(  # noqa: PYI034 - made by open_dict, as when unpickling
        cls,
        pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (),
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> SharedDict:
        """Write the pairs."""
        if isinstance(pairs, (list, tuple)):
            pairs = dict(pairs)
        keys: dict[Any, None] = {}
        found = _values(pairs.items() if isinstance(pairs, Mapping) else pairs, keys)
        writer, values, side_objects = write_items(Writer(path), found, open_list)
        slots = 1 << len(keys).bit_length()
        hashes = np.fromiter((stable_hash(key) & (slots - 1) for key in keys), np.int64, len(keys))
        positions = hashes.argsort(kind="stable")
        writer, names, _ = write_items(writer, keys, open_list)
        if names.get("pickled"):
            raise TypeError("a shared mapping's keys are built-in types, not subclasses of them")
        head = {"keys": names, "values": values, "slots": slots, "positions": writer.align()}
        writer.write(positions)
        head["begins"] = writer.write(hashes[positions].searchsorted(np.arange(slots + 1)))
        return open_dict(finish_file(writer, {"what": "dict", "dict": head}, side_objects), head, side_objects)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> SharedDict:
        """Open the mapping that was written to a file; `trusted` as in `SharedList.open`."""
        buffer, head = open_file(path, "dict")
        with damage_as_value_error(path):
            return open_dict(buffer, head["dict"], read_side_objects(buffer, head, trusted=trusted), trusted)

    def place(self, key: Any) -> int:
        """A key's position among the pairs, or -1."""
        try:
            slot = stable_hash(key) & self._mask
        except TypeError:
            hash(key)  # raises for an unhashable key, as a dict does
            return -1
        for place in self._positions[self._begins[slot] : self._begins[slot + 1]]:
            known = self._keys[place]
            if known is key or known == key:
                return place
        return -1

    def __getitem__(self, key: Any) -> Any:
        place = self.place(key)
        if place < 0:
            raise KeyError(key)
        return self._values[place]

    def __contains__(self, key: object) -> bool:
        return self.place(key) >= 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._keys)

    def keys(self) -> KeysView[Any]:
        """Like `dict.keys()`."""
        return _KeysView(self)

    def values(self) -> ValuesView[Any]:
        """Like `dict.values()`."""
        return _ValuesView(self)

    def items(self) -> ItemsView[Any, Any]:
        """Like `dict.items()`."""
        return _ItemsView(self)

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"SharedDict({len(self):,} {self._values.item_kind}, {self.nbytes / 1e6:,.1f} MB)"

    @property
    def nbytes(self) -> int:
        """The size of the buffer, which exists once."""
        return self._buffer.size

    def __reduce__(self) -> Any:
        return open_dict, (self._buffer, self._head, self._side_objects, self._values._trusted)  # noqa: SLF001 - its column


class _KeysView(KeysView[Any]):
    _mapping: SharedDict

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._mapping)


class _ValuesView(ValuesView[Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._values)  # noqa: SLF001 - a view of it


class _ItemsView(ItemsView[Any, Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._mapping._keys, self._mapping._values, strict=True)  # noqa: SLF001 - a view of it


def open_dict(buffer: Buffer, head: dict[str, Any], side_objects: list[Any], trusted: bool = True) -> SharedDict:  # noqa: FBT001, FBT002 - called by pickle
    """The mapping in a buffer; `trusted` as in `open_list`."""
    shared = object.__new__(SharedDict)
    shared._buffer, shared._head, shared._side_objects = buffer, head, side_objects
    shared._keys = open_list(buffer, head["keys"], [], trusted)
    shared._values = open_list(buffer, head["values"], side_objects, trusted)
    count, slots = len(shared._keys), head["slots"]
    shared._mask = slots - 1
    shared._positions = buffer.words(head["positions"], count)
    shared._begins = buffer.words(head["begins"], slots + 1)
    if not trusted:
        places = np.asarray(shared._positions)
        if slots < 1 or len(shared._values) != count or (count and (places.min() < 0 or places.max() >= count)):
            raise ValueError(f"{buffer.path} is damaged: its keys do not match its values")
    return shared


def _values(pairs: Iterable[tuple[Any, Any]], keys: dict[Any, None]) -> Iterator[Any]:
    """The values of pairs; their keys are added to `keys`."""
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"the key {key!r} occurs twice")
        keys[key] = None
        yield value
