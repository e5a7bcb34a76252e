"""How items are stored in a buffer: as a column of numbers, texts, rows, records or objects.

NOTE [ Columns ]

Similar items form a column. Numbers are stored as machine words, strings and bytes end to end with
the offsets where they end, rows of equally many numbers as a matrix, and dicts with the same keys
as their values, with the keys once. Other plain values are written one by one with `marshal`,
everything else with `pickle`. Classes and functions that no other program can import are not stored
in each item: they are side objects, kept once beside the column.

A record is read as a whole, so its values are stored together and not in one column per key. In our
measurements this is faster, and `marshal` is faster than pyarrow's scalars.
"""

from __future__ import annotations

import array
import io
import itertools
import marshal
import pickle
import types
from collections.abc import Callable, Iterable, Iterator, ValuesView
from typing import Any

import numpy as np
import torch

from unjam.shared.buffer import Buffer, Writer
from unjam.shared.plain import NotPlain, check_plain
from unjam.shared.untrusted import pickled_items_error
from unjam.stored import known_object, tensor_from

# number of items in a chunk: at first, at most; largest size of a chunk in bytes
FIRST, MOST, MOST_BYTES = 256, 1 << 14, 1 << 19
# marshal version 2 writes no references, so the bytes depend only on the value
PLAINLY = 2


class Misfit(Exception):
    """A chunk does not fit the layout of the column."""


class _Numbers:
    """Numbers of one type."""

    side_objects: Any = ()
    KINDS = {int: "q", float: "d", bool: "b"}  # noqa: RUF012 - never changed

    def __init__(self, first: list[Any]) -> None:
        self._type = type(first[0])
        if self._type not in self.KINDS:
            raise Misfit
        self._kind = self.KINDS[self._type]
        self._began = 0
        self._count = 0

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {self._type}:
            raise Misfit
        try:
            data = array.array(self._kind, chunk)
        except OverflowError as error:
            raise Misfit from error
        place = writer.write(data)
        if not self._count:
            self._began = place
        self._count += len(chunk)

    def finish(self, writer: Writer) -> dict[str, Any]:
        del writer
        return {"layout": "words", "kind": self._kind.replace("b", "?"), "at": self._began, "count": self._count}


class _Rows(_Numbers):
    """Tuples or lists of numbers of one type, all of the same length."""

    def __init__(self, first: list[Any]) -> None:
        self._row_type = type(first[0])
        if self._row_type not in (tuple, list) or not first[0]:
            raise Misfit
        self._width = len(first[0])
        super().__init__(first[0])

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {self._row_type} or set(map(len, chunk)) != {self._width}:
            raise Misfit
        super().add(list(itertools.chain.from_iterable(chunk)), writer)

    def finish(self, writer: Writer) -> dict[str, Any]:
        head = {**super().finish(writer), "layout": "rows", "width": self._width, "type": self._row_type.__name__}
        return {**head, "count": self._count // self._width}


class _VariableLength:
    """Items of different lengths: their bytes end to end, and the offsets where they end."""

    LAYOUT = ""
    side_objects: Any = ()

    def __init__(self, first: list[Any]) -> None:
        del first
        self._ends = array.array("q")

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        raise NotImplementedError

    def add(self, chunk: list[Any], writer: Writer) -> None:
        items = self._encoded(chunk)
        self._append(map(len, items), b"".join(items), writer)

    def _append(self, lengths: Iterable[int], data: bytes, writer: Writer) -> None:
        began = writer.write(data)
        if not self._ends:
            self._ends.append(began)
        counted = array.array("q", list(lengths))  # faster than from an iterator
        counted[0] += self._ends[-1]
        sums = np.frombuffer(counted, np.int64)
        np.cumsum(sums, out=sums)
        self._ends += counted

    def finish(self, writer: Writer) -> dict[str, Any]:
        at = writer.align()
        writer.write(self._ends)
        return {"layout": self.LAYOUT, "ends": at, "count": max(0, len(self._ends) - 1)}


class _Strings(_VariableLength):
    """Strings, in UTF-8."""

    LAYOUT = "texts"

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {str}:
            raise Misfit
        joined = "".join(chunk)
        if joined.isascii():  # one byte for each character
            self._append(map(len, chunk), joined.encode("ascii"), writer)
        else:
            super().add(chunk, writer)

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        return [text.encode("utf-8", "surrogatepass") for text in chunk]


class _Bytes(_VariableLength):
    """Bytes."""

    LAYOUT = "blobs"

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        if set(map(type, chunk)) != {bytes}:
            raise Misfit
        return chunk


class _Records(_VariableLength):
    """Dicts with the same keys in the same order, all of them strings."""

    LAYOUT = "records"

    def __init__(self, first: list[Any]) -> None:
        super().__init__(first)
        if type(first[0]) is not dict or not first[0] or set(map(type, first[0])) != {str}:
            raise Misfit
        self._keys = tuple(first[0])

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        if set(map(type, chunk)) != {dict} or not all(map(self._keys.__eq__, map(tuple, chunk))):
            raise Misfit
        check_plain(chunk)
        return [marshal.dumps(tuple(item.values()), PLAINLY) for item in chunk]

    def finish(self, writer: Writer) -> dict[str, Any]:
        return {**super().finish(writer), "keys": list(self._keys)}


class _PlainValues(_VariableLength):
    """Plain values of any shape."""

    LAYOUT = "values"

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        check_plain(chunk)
        try:
            return [marshal.dumps(item, PLAINLY) for item in chunk]
        except ValueError as error:  # nested too deeply
            raise Misfit from error


class _Objects(_VariableLength):
    """Anything that can be pickled."""

    LAYOUT = "objects"

    def __init__(self, first: list[Any]) -> None:
        super().__init__(first)
        self.side_objects = []
        self._numbers: dict[int, int] = {}

    def _encoded(self, chunk: list[Any]) -> list[bytes]:
        return [self._dump(item) for item in chunk]

    def _dump(self, item: Any) -> bytes:
        file = io.BytesIO()
        _ObjectPickler(file, self).dump(item)
        return file.getvalue()

    def number(self, obj: Any) -> int:
        """The number of a class or function among the side objects."""
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.side_objects)
            self.side_objects.append(obj)
        return number


class _ObjectPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, column: _Objects) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._column = column

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)):
            module = getattr(obj, "__module__", None)
            if module in ("__main__", "__mp_main__", None) or "<locals>" in getattr(obj, "__qualname__", ""):
                return known_object, (self._column.number(obj),)
        reduce = _tensors(obj)
        return NotImplemented if reduce is None else reduce


def _tensors(obj: Any) -> Any:
    """Reduce a plain tensor to an array; torch itself would write an archive for each tensor."""
    if (
        type(obj) is not torch.Tensor
        or obj.layout is not torch.strided
        or obj.device.type != "cpu"
        or obj.requires_grad
    ):
        return None
    try:
        return tensor_from, (obj.numpy(),)
    except (TypeError, RuntimeError):  # numpy lacks this type
        return None


# -- writing -------------------------------------------------------------------------------------------------------------

_PLAIN: tuple[Any, ...] = (_Numbers, _Strings, _Bytes, _Rows, _Records, _PlainValues)
Reopen = Callable[[Any, dict[str, Any], list[Any]], Iterable[Any]]


def write_column(
    writer: Writer, items: Iterable[Any], reopen: Reopen, *, plain_only: bool = False, layouts: Any = None
) -> tuple[Writer, dict[str, Any], list[Any]]:
    """Write items as a column, in the most compact of the layouts that fits them all.

    Returns the writer (a new one, if an iterator's items had to be written again), the column's
    head, and the side objects that it needs. `reopen` reads a column back.
    """
    if layouts is None:
        layouts = _PLAIN if plain_only else (*_PLAIN, _Objects)
    source = iter(items)
    if not isinstance(items, (list, tuple, dict, range, ValuesView)):
        items = source  # other iterables may work only once
    began, done = writer.align(), 0
    column: Any = None
    for chunk in _chunks(items if type(items) in (list, tuple) else source, writer):
        if column is None:
            column, layouts = _begin(chunk, writer, layouts, plain_only=plain_only)
            done = len(chunk)
            continue
        before = writer.at
        try:
            column.add(chunk, writer)
        except (Misfit, NotPlain) as misfit:
            if plain_only and isinstance(misfit, NotPlain):
                raise NotPlain(done + misfit.place, misfit.kind) from None
            writer.back_to(before)
            if source is items:  # they can be iterated only once: read back those that are written
                head = column.finish(writer)
                items = itertools.chain(reopen(writer.peek(), head, list(column.side_objects)), chunk, source)
                writer = writer.again()
            else:
                writer.back_to(began)
            return write_column(writer, items, reopen, plain_only=plain_only, layouts=layouts)
        done += len(chunk)
    if column is None:
        return writer, {"layout": "words", "kind": "q", "at": 0, "count": 0}, []
    return writer, column.finish(writer), list(column.side_objects)


def _begin(chunk: list[Any], writer: Writer, layouts: Any, *, plain_only: bool) -> tuple[Any, Any]:
    """Write the first chunk in the first layout that fits; return it and the layouts after it."""
    before = writer.at
    for place, layout in enumerate(layouts):
        try:
            column = layout(chunk)
            column.add(chunk, writer)
        except Misfit:
            writer.back_to(before)
        except NotPlain:
            if plain_only:
                raise
            writer.back_to(before)
        else:
            return column, layouts[place + 1 :]
    raise NotPlain(0, "value that is nested too deeply")


def _chunks(source: Any, writer: Writer) -> Iterator[list[Any]]:
    """Chunks of items: small at first, then larger, about `MOST_BYTES` at most."""
    # slicing a list is faster than iterating over it
    count, at, sliced = FIRST, 0, isinstance(source, (list, tuple))
    while chunk := list(source[at : at + count] if sliced else itertools.islice(source, count)):
        before = writer.at
        yield chunk
        at += len(chunk)
        each = max(1, (writer.at - before) // len(chunk))
        count = max(1, min(MOST, count * 8, MOST_BYTES // each))


def write_side_objects(writer: Writer, side_objects: list[Any]) -> dict[str, Any]:
    """Write the side objects by value, because another program may open the file."""
    if not side_objects:
        return {}
    import cloudpickle  # noqa: PLC0415 - rarely needed

    data = cloudpickle.dumps(side_objects)
    return {"beside": [writer.write(data), len(data)]}


def read_side_objects(buffer: Buffer, head: dict[str, Any], *, trusted: bool) -> list[Any]:
    """Read what `write_side_objects` wrote; it is pickled, so the file must be trusted."""
    if "beside" not in head:
        return []
    if not trusted:
        raise pickled_items_error(buffer.path)
    at, length = head["beside"]
    found: list[Any] = pickle.loads(buffer.bytes[at : at + length])  # noqa: S301 - the caller trusts the file
    return found
