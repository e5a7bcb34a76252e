"""A list that exists once in memory, however many processes read it."""

from __future__ import annotations

import io
import itertools
import marshal
import operator
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from unjam import stored
from unjam.shared import untrusted
from unjam.shared.buffer import Buffer, CopiedByReference, Writer, open_file
from unjam.shared.columns import read_side_objects, write_column, write_side_objects
from unjam.shared.untrusted import broken_file, check_column

# how many items are decoded together while iterating
STRIDE = 4096


class SharedList(CopiedByReference, Sequence[Any]):
    """A read-only list over one buffer that every process maps: `SharedList(items)`.

    items: any iterable. The items of an iterator are written one after another, so they are never all
        in memory twice.
    path: a file for the items, for more data than fits into memory. `SharedList.open(path)` opens
        it again, in any process.

    Each access makes a new object that equals the original item, so changing it does not change the
    list. Strings, bytes, numbers, rows of numbers and dicts with the same keys are stored in
    columns; see NOTE [ Columns ]. A slice uses the same buffer. The list is pickled by reference,
    so sending it to another process of this machine costs nothing. `list(shared)` is an ordinary
    list again.
    """

    __slots__ = ("__weakref__", "_buffer", "_count", "_decode", "_head", "_side_objects", "_trusted")
    __hash__ = None  # type: ignore[assignment] # as a list's
    _trusted: bool
    _decode: Callable[[bytes], Any]
    _head: dict[str, Any]
    _side_objects: list[Any]
    # what `repr` calls the items
    item_kind: ClassVar[str] = "items"
    _buffer: Buffer
    _count: int

    def __new__(cls, items: Iterable[Any] = (), *, path: str | os.PathLike[str] | None = None) -> SharedList:  # noqa: PYI034 - the items decide which subclass
        """Write the items."""
        writer, head, side_objects = write_column(Writer(path), items, open_list)
        whole = {
            "what": "list",
            "column": head,
            **(write_side_objects(writer, side_objects) if path is not None else {}),
        }
        return open_list(writer.finish(whole), head, side_objects)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> SharedList:
        """Open the list that was written to a file.

        trusted: whether you trust everyone who could write to the file. Objects that are not plain
            values are pickled, and unpickling runs code. Without `trusted`, such a file is refused,
            and a decoder that checks each byte reads plain values (slower for dicts).
        """
        buffer, head = open_file(path, "list")
        with broken_file(path):
            return open_list(buffer, head["column"], read_side_objects(buffer, head, trusted=trusted), trusted)

    def _begin(self) -> None:
        """Prepare what each access needs."""

    def _get(self, index: int) -> Any:
        """The item at an index that is in range and not negative."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SharedSlice(self, range(self._count)[index])
        place = operator.index(index)
        if place < 0:
            place += self._count
        if not 0 <= place < self._count:
            raise IndexError(f"index {index} of a list of {self._count} items")
        return self._get(place)

    def __iter__(self) -> Iterator[Any]:
        return map(self._get, range(self._count))

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
    def nbytes(self) -> int:
        """The size of the buffer, which exists once."""
        return self._buffer.size

    def __reduce__(self) -> Any:
        return open_list, (self._buffer, self._head, self._side_objects, self._trusted)


class NumberList(SharedList):
    """Integers, floats or booleans."""

    __slots__ = ("_numbers",)
    item_kind = "numbers"

    def _begin(self) -> None:
        self._numbers = self._buffer.words(self._head["at"], self._count, self._head["kind"])

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._numbers[index.__index__()]
        except AttributeError:
            return super().__getitem__(index)

    def _get(self, index: int) -> Any:
        return self._numbers[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - numpy's signature
        return _as_array(self._numbers, dtype, copy)


def _as_array(numbers: memoryview, dtype: Any, copy: bool | None) -> Any:  # noqa: FBT001 - numpy's arguments
    import numpy as np  # noqa: PLC0415 - numpy is the caller

    array = np.asarray(numbers, dtype)
    return array.copy() if copy else array


class _VariableLength(SharedList):
    """Items of different lengths."""

    __slots__ = ("_bytes", "_ends", "_starts")

    def _begin(self) -> None:
        # two views of the same offsets, so that negative indices work without arithmetic
        places = self._buffer.words(self._head["ends"], self._count + 1)
        self._bytes = self._buffer.bytes
        self._starts, self._ends = places[:-1], places[1:]


class StringList(_VariableLength):
    """Strings."""

    __slots__ = ()
    item_kind = "strings"

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._bytes[self._starts[index] : self._ends[index]].decode()
        except TypeError:
            return super().__getitem__(index)
        except UnicodeDecodeError:  # lone surrogates, as in names of files that are not UTF-8
            return self._bytes[self._starts[index] : self._ends[index]].decode("utf-8", "surrogatepass")

    def _get(self, index: int) -> Any:
        return self[index]

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, self._count, STRIDE):
            last = min(first + STRIDE, self._count)
            began = self._starts[first]
            data = self._bytes[began : self._ends[last - 1]]
            text = data.decode("utf-8", "surrogatepass")
            ends = self._ends[first:last].tolist()
            if len(text) == len(data):  # every character is one byte
                for start, end in itertools.pairwise((began, *ends)):
                    yield text[start - began : end - began]
            else:
                for start, end in itertools.pairwise((began, *ends)):
                    yield data[start - began : end - began].decode("utf-8", "surrogatepass")


class BytesList(_VariableLength):
    """Bytes."""

    __slots__ = ()
    item_kind = "bytes objects"

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._bytes[self._starts[index] : self._ends[index]]
        except TypeError:
            return super().__getitem__(index)

    def _get(self, index: int) -> Any:
        return self[index]


class RowList(SharedList):
    """Tuples or lists of numbers, all of the same length."""

    __slots__ = ("_numbers", "_type", "_width")
    item_kind = "rows of numbers"

    def _begin(self) -> None:
        head = self._head
        self._width, self._type = head["width"], {"tuple": tuple, "list": list}[head["type"]]
        self._numbers = self._buffer.words(head["at"], self._count * self._width, head["kind"])

    def _get(self, index: int) -> Any:
        row = self._numbers[index * self._width : (index + 1) * self._width].tolist()
        return row if self._type is list else tuple(row)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - numpy's signature
        return _as_array(self._numbers, dtype, copy).reshape(self._count, self._width)


class RecordList(_VariableLength):
    """Dicts with the same keys."""

    __slots__ = ("_keys",)
    item_kind = "dicts"

    def _begin(self) -> None:
        super()._begin()
        self._keys = tuple(self._head["keys"])

    def _get(self, index: int) -> Any:
        values = self._decode(self._bytes[self._starts[index] : self._ends[index]])
        try:
            return dict(zip(self._keys, values, strict=True))
        except TypeError as error:
            raise ValueError(f"item {index} is damaged: {error}") from error


class PlainValueList(_VariableLength):
    """Plain values of any shape."""

    __slots__ = ()
    item_kind = "plain values"

    def _get(self, index: int) -> Any:
        return self._decode(self._bytes[self._starts[index] : self._ends[index]])


class ObjectList(_VariableLength):
    """Anything that can be pickled."""

    __slots__ = ()
    item_kind = "objects"

    def _get(self, index: int) -> Any:
        return _Loader(io.BytesIO(self._bytes[self._starts[index] : self._ends[index]]), self._side_objects).load()


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, side_objects: list[Any]) -> None:
        super().__init__(file)
        self._side_objects = side_objects

    def find_class(self, module: str, name: str) -> Any:
        # compare only the name, because files of earlier versions name another module of unjam
        if module.startswith("unjam.") and name == stored.known_object.__name__:
            return self._side_objects.__getitem__
        if module.startswith("unjam.") and name == stored.tensor_from.__name__:
            return stored.tensor_from
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
        return self._of._get(self._range[operator.index(index)])  # noqa: SLF001 - a part of it

    def __iter__(self) -> Iterator[Any]:
        return map(self._of._get, self._range)  # noqa: SLF001 - a part of it

    __eq__ = SharedList.__eq__
    __add__ = SharedList.__add__
    __radd__ = SharedList.__radd__

    def __repr__(self) -> str:
        return f"SharedSlice({len(self):,} of {self._of!r})"

    def __reduce__(self) -> Any:
        return SharedSlice, (self._of, self._range)


_LAYOUTS: dict[str, type[SharedList]] = {
    "words": NumberList, "texts": StringList, "blobs": BytesList, "rows": RowList, "records": RecordList, "values": PlainValueList, "objects": ObjectList,
}  # fmt: skip


def open_list(buffer: Buffer, head: dict[str, Any], side_objects: list[Any], trusted: bool = True) -> SharedList:  # noqa: FBT001, FBT002 - called by pickle
    """The list in a column of a buffer. `trusted`: whether only trusted code can have written it."""
    if not trusted:
        check_column(buffer, head)
    shared = object.__new__(_LAYOUTS[head["layout"]])
    shared._buffer, shared._head, shared._side_objects, shared._trusted = buffer, head, side_objects, trusted
    shared._decode = marshal.loads if trusted else untrusted.loads
    shared._count = head["count"]
    shared._begin()
    return shared
