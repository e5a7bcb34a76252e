"""A mapping that exists once in memory, however many processes read it.

Keys and values are two columns. A hash table leads from a key to its position in them. Its hash is
the same in every process, which Python's own hash of a string is not.
"""

from __future__ import annotations

import array
import os
import zlib
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from numbers import Number
from typing import Any

from unjam.shared.buffer import Buffer, CopiedByReference, Writer, open_file
from unjam.shared.columns import read_side_objects, write_column, write_side_objects
from unjam.shared.lists import SharedList, open_list
from unjam.shared.untrusted import broken_file, check_table

_MASK = (1 << 64) - 1


def _mixed(number: int) -> int:
    """Mix all bits of a number into the low bits, because the table uses only those."""
    number &= _MASK
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    return number ^ number >> 29


def stable_hash(key: Any) -> int:
    """A hash that is equal for equal keys, in every process; TypeError for unsupported keys."""
    if isinstance(key, str):
        return _mixed(zlib.crc32(key.encode("utf-8", "surrogatepass")))
    if isinstance(key, bytes):
        return _mixed(zlib.crc32(key))
    if type(key).__module__ == "numpy" and hasattr(key, "item"):
        return stable_hash(key.item())
    if isinstance(key, Number) and key.__hash__ is not None:
        return _mixed(hash(key))
    if key is None:
        return 1
    if isinstance(key, tuple):
        mixed = 7
        for part in key:
            mixed = (mixed * 1_000_003 ^ stable_hash(part)) & _MASK
        return mixed
    raise TypeError(
        f"a shared mapping's keys are strings, bytes, numbers, None and tuples of these, not {type(key).__qualname__}"
    )


class SharedDict(CopiedByReference, Mapping[Any, Any]):
    """A read-only dict in one shared buffer: `SharedDict(mapping)` or `SharedDict(pairs)`.

    It keeps the order of the pairs. Each access makes a new value that equals the original one.
    `path`, `open` and pickling work as for `SharedList`.
    """

    __slots__ = ("__weakref__", "_buffer", "_count", "_head", "_keys", "_mask", "_side_objects", "_table", "_values")
    __hash__ = None  # type: ignore[assignment] # as a dict's
    _buffer: Buffer
    _keys: SharedList
    _values: SharedList
    _head: dict[str, Any]
    _side_objects: list[Any]
    _table: memoryview
    _count: int
    _mask: int

    def __new__(  # noqa: PYI034 - made by open_dict, as when unpickling
        cls,
        pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (),
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> SharedDict:
        """Write the pairs."""
        if not isinstance(pairs, Mapping):
            pairs = dict(pairs) if isinstance(pairs, (list, tuple)) else _Streamed(pairs)
        writer, values, side_objects = write_column(Writer(path), pairs.values(), open_list)
        keys = list(pairs)
        table = _table(keys)
        writer, column, _ = write_column(writer, keys, open_list, plain_only=True)
        head = {"keys": column, "values": values, "count": len(keys), "slots": len(table), "table": writer.align()}
        writer.write(table)
        whole = {"what": "dict", "dict": head, **(write_side_objects(writer, side_objects) if path is not None else {})}
        return open_dict(writer.finish(whole), head, side_objects)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> SharedDict:
        """Open the mapping that was written to a file; `trusted` as in `SharedList.open`."""
        buffer, head = open_file(path, "dict")
        with broken_file(path):
            return open_dict(buffer, head["dict"], read_side_objects(buffer, head, trusted=trusted), trusted)

    def place(self, key: Any) -> int:
        """A key's position among the pairs, or -1."""
        if not self._count:
            hash(key)  # raises for an unhashable key, as a dict does
            return -1
        try:
            slot = stable_hash(key) & self._mask
        except TypeError:
            hash(key)  # the same
            return -1
        table, keys = self._table, self._keys
        for _ in range(self._mask + 1):  # bounded, because a table in an untrusted file may have no free slot
            found = table[slot]
            if found < 0:
                return -1
            known = keys[found]
            if known is key or known == key:
                return found
            slot = (slot + 1) & self._mask
        return -1

    def __getitem__(self, key: Any) -> Any:
        place = self.place(key)
        if place < 0:
            raise KeyError(key)
        return self._values[place]

    def __contains__(self, key: object) -> bool:
        return self.place(key) >= 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._keys)

    def keys(self) -> KeysView[Any]:
        """As a dict's."""
        return _KeysView(self)

    def values(self) -> ValuesView[Any]:
        """As a dict's."""
        return _ValuesView(self)

    def items(self) -> ItemsView[Any, Any]:
        """As a dict's."""
        return _ItemsView(self)

    def __or__(self, other: Any) -> dict[Any, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"SharedDict({self._count:,} {self._values.item_kind}, {self.nbytes / 1e6:,.1f} MB)"

    @property
    def nbytes(self) -> int:
        """The size of the buffer, which exists once."""
        return self._buffer.size

    def __reduce__(self) -> Any:
        return open_dict, (self._buffer, self._head, self._side_objects, self._values._trusted)  # noqa: SLF001 - its column


class _KeysView(KeysView[Any]):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._keys)  # noqa: SLF001 - a view of it

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self._mapping._keys)  # noqa: SLF001 - as above


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
    if not trusted:
        check_table(buffer, head)
    shared = object.__new__(SharedDict)
    shared._buffer, shared._head, shared._side_objects = buffer, head, side_objects
    shared._keys = open_list(buffer, head["keys"], [], trusted)
    shared._values = open_list(buffer, head["values"], side_objects, trusted)
    shared._count = head["count"]
    shared._mask = head["slots"] - 1
    shared._table = buffer.words(head["table"], head["slots"])
    return shared


class _Streamed(Mapping[Any, Any]):
    """Pairs of an iterator: yields the values once, and keeps only the keys."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._pairs = pairs
        self._kept: list[Any] = []

    def values(self) -> Any:
        for key, value in self._pairs:
            self._kept.append(key)
            yield value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)


def _table(keys: list[Any]) -> array.array[int]:
    """The hash table of the keys: the position of a key in each used slot, -1 in the others."""
    slots = 8
    while slots < len(keys) * 2:
        slots *= 2
    table, mask = array.array("q", [-1]) * slots, slots - 1
    for place, key in enumerate(keys):
        slot = stable_hash(key) & mask
        while (found := table[slot]) >= 0:
            if keys[found] == key:
                raise ValueError(f"the key {key!r} occurs twice")
            slot = (slot + 1) & mask
        table[slot] = place
    return table
