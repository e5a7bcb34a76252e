"""How items are stored in a buffer: as a column of numbers, texts, rows, records or objects.

NOTE [ Columns ]

Similar items form a column. Numbers are stored as machine words, strings and bytes end to end with
the offsets where they end, rows of equally many numbers as a matrix, and dicts with the same keys
as their values, with the keys once. Other plain values are written one by one with `marshal`,
everything else with `pickle`. Classes that only this program knows are kept beside the column, not
in each item.

A record is read as a whole, so its values are stored together and not one column per key. Measured,
this is faster, and `marshal` is faster than pyarrow's scalars.
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
from unjam.shared.untrusted import untrusted
from unjam.stored import known_object, tensor_from

# how many items one chunk has: at first, at most; and how many bytes a chunk should have at most
FIRST, MOST, MOST_BYTES = 256, 1 << 14, 1 << 19
# marshal version 2 writes no references, so the bytes depend only on the value
PLAINLY = 2


class Misfit(Exception):
    """A chunk does not fit the layout of the column."""


class _Words:
    """Numbers of one type."""

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


class _Ends:
    """The offsets where items end, for columns with items of different lengths."""

    def __init__(self) -> None:
        self._ends = array.array("q")

    def lengths(self, lengths: Iterable[int], began: int) -> None:
        if not self._ends:
            self._ends.append(began)
        counted = array.array("q", list(lengths))  # faster than from an iterator
        counted[0] += self._ends[-1]
        sums = np.frombuffer(counted, np.int64)
        np.cumsum(sums, out=sums)
        self._ends += counted

    def finish(self, writer: Writer, **facts: Any) -> dict[str, Any]:
        at = writer.align()
        writer.write(self._ends)
        return {**facts, "ends": at, "count": max(0, len(self._ends) - 1)}


class _Texts:
    """Strings (in UTF-8) or bytes."""

    def __init__(self, first: list[Any]) -> None:
        self._type = type(first[0])
        if self._type not in (str, bytes):
            raise Misfit
        self._ends = _Ends()

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {self._type}:
            raise Misfit
        if self._type is bytes:
            self._ends.lengths(map(len, chunk), writer.write(b"".join(chunk)))
            return
        together = "".join(chunk)
        if together.isascii():
            self._ends.lengths(map(len, chunk), writer.write(together.encode("ascii")))
        else:
            encoded = [text.encode("utf-8", "surrogatepass") for text in chunk]
            self._ends.lengths(map(len, encoded), writer.write(b"".join(encoded)))

    def finish(self, writer: Writer) -> dict[str, Any]:
        return self._ends.finish(writer, layout="texts" if self._type is str else "blobs")


class _Rows:
    """Tuples or lists of numbers of one type, all of the same length."""

    def __init__(self, first: list[Any]) -> None:
        self._type = type(first[0])
        if self._type not in (tuple, list) or not first[0]:
            raise Misfit
        self._width = len(first[0])
        self._words = _Words(first[0])

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {self._type} or set(map(len, chunk)) != {self._width}:
            raise Misfit
        self._words.add(list(itertools.chain.from_iterable(chunk)), writer)

    def finish(self, writer: Writer) -> dict[str, Any]:
        words = self._words.finish(writer)
        return {
            **words, "layout": "rows", "width": self._width, "type": self._type.__name__,
            "count": words["count"] // self._width,
        }  # fmt: skip


class _Records:
    """Dicts with the same keys in the same order, all of them strings."""

    def __init__(self, first: list[Any]) -> None:
        if type(first[0]) is not dict or not first[0] or set(map(type, first[0])) != {str}:
            raise Misfit
        self._keys = tuple(first[0])
        self._ends = _Ends()

    def add(self, chunk: list[Any], writer: Writer) -> None:
        if set(map(type, chunk)) != {dict} or not all(map(self._keys.__eq__, map(tuple, chunk))):
            raise Misfit
        check_plain(chunk)
        values = [tuple(item.values()) for item in chunk]
        rows = [marshal.dumps(row, PLAINLY) for row in values]
        self._ends.lengths(map(len, rows), writer.write(b"".join(rows)))

    def finish(self, writer: Writer) -> dict[str, Any]:
        return self._ends.finish(writer, layout="records", keys=list(self._keys))


class _Values:
    """Plain values of any shape."""

    def __init__(self, first: list[Any]) -> None:
        del first
        self._ends = _Ends()

    def add(self, chunk: list[Any], writer: Writer) -> None:
        check_plain(chunk)
        try:
            rows = [marshal.dumps(item, PLAINLY) for item in chunk]
        except ValueError as error:  # nested too deeply
            raise Misfit from error
        self._ends.lengths(map(len, rows), writer.write(b"".join(rows)))

    def finish(self, writer: Writer) -> dict[str, Any]:
        return self._ends.finish(writer, layout="values")


class _Objects:
    """Anything that can be pickled."""

    def __init__(self, first: list[Any]) -> None:
        del first
        self._ends = _Ends()
        self.known: list[Any] = []
        self._numbers: dict[int, int] = {}

    def add(self, chunk: list[Any], writer: Writer) -> None:
        rows = [self._dump(item) for item in chunk]
        self._ends.lengths(map(len, rows), writer.write(b"".join(rows)))

    def _dump(self, item: Any) -> bytes:
        file = io.BytesIO()
        _ObjectPickler(file, self).dump(item)
        return file.getvalue()

    def number(self, obj: Any) -> int:
        """The number of a class or function among those that are kept beside the column."""
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.known)
            self.known.append(obj)
        return number

    def finish(self, writer: Writer) -> dict[str, Any]:
        return self._ends.finish(writer, layout="objects")


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

_PLAIN: tuple[Callable[[list[Any]], Any], ...] = (_Words, _Texts, _Rows, _Records, _Values)
Reopen = Callable[[Any, dict[str, Any], list[Any]], Iterable[Any]]


def write_column(
    writer: Writer, items: Iterable[Any], reopen: Reopen, *, plain_only: bool = False
) -> tuple[Writer, dict[str, Any], list[Any]]:
    """Write items as a column, in the most compact layout that fits them all.

    Returns the writer (a new one, if an iterator's items had to be written again), the column's
    head, and the classes and functions that are kept beside it. `reopen` reads a column back.
    """
    layouts = _PLAIN if plain_only else (*_PLAIN, _Objects)
    return _write(writer, items, reopen, layouts, plain_only=plain_only)


def _write(
    writer: Writer, items: Iterable[Any], reopen: Reopen, layouts: Any, *, plain_only: bool
) -> tuple[Writer, dict[str, Any], list[Any]]:
    source = iter(items)
    if not isinstance(items, (list, tuple, dict, range, ValuesView)):
        items = source  # an iterable that is no iterator may still work only once
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
            if source is not items:  # the items can be iterated again
                writer.back_to(began)
                return _write(writer, items, reopen, layouts, plain_only=plain_only)
            head = column.finish(writer)
            anew = itertools.chain(reopen(writer.peek(), head, getattr(column, "known", [])), chunk, source)
            return _write(writer.again(), anew, reopen, layouts, plain_only=plain_only)
        done += len(chunk)
    if column is None:
        return writer, {"layout": "words", "kind": "q", "at": 0, "count": 0}, []
    return writer, column.finish(writer), getattr(column, "known", [])


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


def write_beside(writer: Writer, beside: list[Any]) -> dict[str, Any]:
    """Write the classes that a file's items need, by value: another program may open the file."""
    if not beside:
        return {}
    import cloudpickle  # noqa: PLC0415 - rarely needed

    data = cloudpickle.dumps(beside)
    return {"beside": [writer.write(data), len(data)]}


def read_beside(buffer: Buffer, head: dict[str, Any], *, trusted: bool) -> list[Any]:
    """Read what `write_beside` wrote; it is pickled, so the file must be trusted."""
    if "beside" not in head:
        return []
    if not trusted:
        raise untrusted(buffer.path)
    at, length = head["beside"]
    found: list[Any] = pickle.loads(buffer.bytes[at : at + length])  # noqa: S301 - the caller trusts the file
    return found
