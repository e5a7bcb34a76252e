"""A list that exists once in memory, however many processes read it."""

from __future__ import annotations

import functools
import io
import marshal
import operator
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from unjam import stored
from unjam.shared import untrusted
from unjam.shared.buffer import Buffer, CopiedByReference, Writer, open_file
from unjam.shared.columns import KINDS, PICKLED, write_items
from unjam.shared.untrusted import damage_as_value_error, pickled_items_error

# what `repr` calls the items of a layout
_NAMES = {
    "words": "numbers",
    "rows": "rows of numbers",
    "texts": "strings",
    "blobs": "bytes objects",
    "records": "dicts",
}


class SharedList(CopiedByReference, Sequence[Any]):
    """A read-only list over one buffer that every process maps: `SharedList(items)`.

    items: any iterable. The items of an iterator are written one after another, so they are never all
        in memory twice.
    path: a file for the items, for more data than fits into memory. `SharedList.open(path)` opens
        it again, in any process.

    Each access makes a new object that equals the original item, so changing it does not change the
    list. Strings, bytes, numbers, rows of numbers and dicts with the same keys are stored more
    compactly than other items; see NOTE [ Layouts ]. A slice uses the same buffer. The list is
    pickled by reference, so sending it to another process of this machine costs nothing.
    `list(shared)` is an ordinary list again.
    """

    __slots__ = ("__weakref__", "_buffer", "_count", "_head", "_side_objects", "_trusted")
    __hash__ = None  # type: ignore[assignment] # as a list's
    _buffer: Buffer
    _head: dict[str, Any]
    _side_objects: list[Any]
    _trusted: bool
    _count: int

    def __new__(cls, items: Iterable[Any] = (), *, path: str | os.PathLike[str] | None = None) -> SharedList:  # noqa: PYI034 - the items decide which subclass
        """Write the items."""
        writer, head, side_objects = write_items(Writer(path), items, open_list)
        return open_list(finish_file(writer, {"what": "list", "column": head}, side_objects), head, side_objects)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> SharedList:
        """Open the list that was written to a file.

        trusted: whether you trust everyone who could write to the file. Objects that are not plain
            values are pickled, and unpickling runs code. Without `trusted`, such a file is refused,
            and a decoder that checks each byte reads plain values (slower for dicts).
        """
        buffer, head = open_file(path, "list")
        with damage_as_value_error(path):
            return open_list(buffer, head["column"], read_side_objects(buffer, head, trusted=trusted), trusted)

    def _begin(self) -> None:
        """Prepare what each access needs."""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return SharedSlice(self, range(self._count)[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, SharedList, SharedSlice)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, (list, SharedList, SharedSlice)) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __repr__(self) -> str:
        return f"SharedList({self._count:,} {self.item_kind}, {self.nbytes / 1e6:,.1f} MB)"

    @property
    def item_kind(self) -> str:
        """What `repr` calls the items."""
        return _NAMES.get("rows" if "row" in self._head else self._head["layout"], "items")

    @property
    def nbytes(self) -> int:
        """The size of the buffer, which exists once."""
        return self._buffer.size

    def __reduce__(self) -> Any:
        return open_list, (self._buffer, self._head, self._side_objects, self._trusted)


class NumberList(SharedList):
    """Numbers of one type."""

    __slots__ = ("_numbers",)

    def _begin(self) -> None:
        if self._head["kind"] not in KINDS.values():
            raise ValueError(f"{str(self._head['kind'])[:40]!r} is not a known number type")
        self._numbers = self._buffer.words(
            self._head["at"], self._count * self._head.get("width", 1), self._head["kind"]
        )

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._numbers[index.__index__()]
        except AttributeError:
            return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - numpy's signature
        array = np.asarray(self._numbers, dtype)
        return array.copy() if copy else array


class RowList(NumberList):
    """Tuples or lists of numbers, all of the same length."""

    __slots__ = ("_row", "_width")

    def _begin(self) -> None:
        super()._begin()
        self._width, self._row = self._head["width"], {"tuple": tuple, "list": list}[self._head["row"]]
        if self._width < 1:
            raise ValueError("rows without numbers")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        start = range(self._count)[index] * self._width
        return self._row(self._numbers[start : start + self._width])

    def __iter__(self) -> Iterator[Any]:
        rows = zip(*[iter(self._numbers)] * self._width, strict=True)
        return rows if self._row is tuple else map(list, rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - numpy's signature
        return super().__array__(dtype, copy).reshape(self._count, self._width)


class VariableLengthList(SharedList):
    """Items of different lengths."""

    __slots__ = ("_bytes", "_decode", "_ends", "_starts")
    _decode: Callable[[bytes], Any]

    def _begin(self) -> None:
        # two views of the same offsets, so that negative indices work without arithmetic
        places = self._buffer.words(self._head["ends"], self._count + 1)
        self._bytes = self._buffer.bytes
        self._starts, self._ends = places[:-1], places[1:]
        self._decode = _decoder(self._buffer, self._head, self._side_objects, trusted=self._trusted)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        return self._decode(self._bytes[self._starts[index] : self._ends[index]])

    def __iter__(self) -> Iterator[Any]:
        decode, data = self._decode, self._bytes
        return (decode(data[start:end]) for start, end in zip(self._starts, self._ends, strict=True))


def _decoder(buffer: Buffer, head: dict[str, Any], side_objects: list[Any], *, trusted: bool) -> Callable[[bytes], Any]:
    """The function that decodes one item."""
    plain: Callable[[bytes], Any] = marshal.loads if trusted else untrusted.loads
    if head["layout"] == "texts":
        return bytes.decode
    if head["layout"] == "blobs":
        return bytes
    if head["layout"] == "records":
        keys = tuple(head["keys"])
        if set(map(type, keys)) != {str}:
            raise ValueError("the keys of its records are not strings")
        return functools.partial(_record, keys, plain)
    if head["layout"] != "items":
        raise ValueError(f"{buffer.path} has the unknown layout {str(head['layout'])[:40]!r}")
    if not head["pickled"]:
        return plain
    if not trusted:
        raise pickled_items_error(buffer.path)
    return functools.partial(_item, side_objects)


def _record(keys: tuple[str, ...], plain: Callable[[bytes], Any], data: bytes) -> dict[str, Any]:
    try:
        return dict(zip(keys, plain(data), strict=True))
    except TypeError as error:
        raise ValueError(f"a dict is damaged: {error}") from error


def _item(side_objects: list[Any], data: bytes) -> Any:
    if data[0] != PICKLED:
        return marshal.loads(data)  # noqa: S302 - the caller trusts the file
    return _Unpickler(io.BytesIO(data), side_objects).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, side_objects: list[Any]) -> None:
        super().__init__(file)
        self._side_objects = side_objects

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (stored.__name__, stored.known_object.__name__):
            return self._side_objects.__getitem__
        return super().find_class(module, name)


class SharedSlice(Sequence[Any]):
    """A part of a shared list, over the same buffer."""

    __slots__ = ("_of", "_range")
    __hash__ = None  # type: ignore[assignment] # as a list's

    def __init__(self, of: SharedList, places: range) -> None:
        self._of = of
        self._range = places

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SharedSlice(self._of, self._range[index])
        return self._of[self._range[index]]

    def __iter__(self) -> Iterator[Any]:
        return map(self._of.__getitem__, self._range)

    __eq__ = SharedList.__eq__
    __add__ = SharedList.__add__
    __radd__ = SharedList.__radd__

    def __repr__(self) -> str:
        return f"SharedSlice({len(self):,} of {self._of!r})"

    def __reduce__(self) -> Any:
        return SharedSlice, (self._of, self._range)


def open_list(buffer: Buffer, head: dict[str, Any], side_objects: list[Any], trusted: bool = True) -> SharedList:  # noqa: FBT001, FBT002 - called by pickle
    """The list in a buffer. `trusted`: whether only trusted code can have written it."""
    kind = VariableLengthList if head["layout"] != "words" else RowList if "row" in head else NumberList
    shared = object.__new__(kind)
    shared._buffer, shared._head, shared._side_objects, shared._trusted = buffer, head, side_objects, trusted
    shared._count = head["count"]
    shared._begin()
    return shared


def finish_file(writer: Writer, head: dict[str, Any], side_objects: list[Any]) -> Buffer:
    """Complete the buffer. Another program may open a file, so side objects are written to it by value."""
    if side_objects and writer.path is not None:
        import cloudpickle  # noqa: PLC0415 - rarely needed

        data = cloudpickle.dumps(side_objects)
        head["beside"] = [writer.write(data), len(data)]
    return writer.finish(head)


def read_side_objects(buffer: Buffer, head: dict[str, Any], *, trusted: bool) -> list[Any]:
    """The side objects in a file; they are pickled, so the file must be trusted."""
    if "beside" not in head:
        return []
    if not trusted:
        raise pickled_items_error(buffer.path)
    at, length = head["beside"]
    found: list[Any] = pickle.loads(buffer.bytes[at : at + length])  # noqa: S301 - the caller trusts the file
    return found
