"""How items are written to a buffer.

NOTE [ Layouts ]

Items are written in the most compact layout that fits all of them:

- words: numbers of one type, or rows (tuples or lists) of equally many such numbers, as machine words
- texts, blobs: strings and bytes, end to end, with the offsets where they end
- records: dicts with the same keys; the keys are stored once, the values as in the next layout
- items: anything. Plain values are written with `marshal`, everything else with `pickle`.

Classes and functions that no other program can import are not stored in each item: they are side
objects, kept once next to the items.

The values of a record are stored together and not in one column per key, because a record is read
as a whole. In our measurements this is faster, and `marshal` is faster than pyarrow's scalars.
"""

from __future__ import annotations

import array
import contextlib
import io
import itertools
import marshal
import pickle
import types
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch

from unjam.shared.buffer import Buffer, Writer
from unjam.shared.plain import is_plain
from unjam.stored import known_object, tensor_from

# items that are written together: the first ones; later as many as have this many bytes, and at most so many
FIRST_CHUNK, CHUNK_BYTES, CHUNK = 16, 1 << 19, 512
# marshal version 2 writes no references, so the bytes depend only on the value
MARSHAL_VERSION = 2
# the first byte of a pickle; no plain value that marshal writes begins with it
PICKLED = pickle.PROTO[0]
KINDS: dict[type, str] = {int: "q", float: "d", bool: "?"}
Reopen = Callable[[Buffer, dict[str, Any], list[Any]], Iterable[Any]]


class Misfit(Exception):
    """A chunk does not fit the layout."""


def _check(fits: bool) -> None:  # noqa: FBT001 - an assertion
    if not fits:
        raise Misfit


class _Words:
    """Numbers, or rows of them."""

    def __init__(self, first: Any, writer: Writer) -> None:
        self.side_objects: list[Any] = []
        self._writer, self._at, self._count = writer, writer.align(), 0
        self._row_type = type(first) if type(first) in (tuple, list) else None
        self._width = len(first) if self._row_type else 1
        _check(self._width > 0)
        self._type = type(first[0] if self._row_type else first)
        _check(self._type in KINDS)

    def add(self, chunk: list[Any]) -> None:
        numbers = chunk
        if self._row_type:
            _check(set(map(type, chunk)) == {self._row_type} and set(map(len, chunk)) == {self._width})
            numbers = list(itertools.chain.from_iterable(chunk))
        _check(set(map(type, numbers)) == {self._type})
        try:
            self._writer.write(array.array("b" if self._type is bool else KINDS[self._type], numbers))
        except OverflowError as error:
            raise Misfit from error
        self._count += len(chunk)

    def finish(self) -> dict[str, Any]:
        head = {"layout": "words", "kind": KINDS[self._type], "at": self._at, "count": self._count}
        return {**head, "row": self._row_type.__name__, "width": self._width} if self._row_type else head


class _VariableLength:
    """Items of different lengths: their bytes end to end, and the offsets where they end."""

    LAYOUT = ""

    def __init__(self, first: Any, writer: Writer) -> None:
        del first
        self.side_objects: list[Any] = []
        self._writer, self._ends = writer, array.array("q", [writer.at])

    def encode(self, chunk: list[Any]) -> list[bytes]:
        raise NotImplementedError

    def add(self, chunk: list[Any]) -> None:
        encoded = self.encode(chunk)
        self.append(b"".join(encoded), encoded)

    def append(self, data: bytes, items: Sequence[Sized]) -> None:
        """Write the bytes of some items; `items`: have as many bytes as their length says."""
        self._writer.write(data)
        lengths = np.array([self._ends[-1], *map(len, items)], np.int64)
        self._ends.frombytes(lengths.cumsum()[1:].tobytes())

    def finish(self) -> dict[str, Any]:
        at = self._writer.align()
        self._writer.write(self._ends)
        return {"layout": self.LAYOUT, "ends": at, "count": len(self._ends) - 1}


class _Texts(_VariableLength):
    LAYOUT = "texts"

    def add(self, chunk: list[Any]) -> None:
        _check(set(map(type, chunk)) == {str})
        together = "".join(chunk)
        if together.isascii():
            self.append(together.encode(), chunk)
        else:
            super().add(chunk)

    def encode(self, chunk: list[Any]) -> list[bytes]:
        try:
            return [text.encode() for text in chunk]
        except UnicodeEncodeError as error:  # lone surrogates, as in names of files that are not UTF-8
            raise Misfit from error


class _Blobs(_VariableLength):
    LAYOUT = "blobs"

    def encode(self, chunk: list[Any]) -> list[bytes]:
        _check(set(map(type, chunk)) == {bytes})
        return chunk


class _Records(_VariableLength):
    LAYOUT = "records"

    def __init__(self, first: Any, writer: Writer) -> None:
        super().__init__(first, writer)
        _check(type(first) is dict and set(map(type, first)) == {str})
        self._keys = tuple(first)

    def encode(self, chunk: list[Any]) -> list[bytes]:
        _check(set(map(type, chunk)) == {dict} and all(map(self._keys.__eq__, map(tuple, chunk))))
        _check(is_plain(chunk) is None)
        return [marshal.dumps(tuple(item.values()), MARSHAL_VERSION) for item in chunk]

    def finish(self) -> dict[str, Any]:
        return {**super().finish(), "keys": list(self._keys)}


class _Items(_VariableLength):
    LAYOUT = "items"

    def __init__(self, first: Any, writer: Writer) -> None:
        super().__init__(first, writer)
        self._numbers: dict[int, int] = {}
        self._pickled = False

    def encode(self, chunk: list[Any]) -> list[bytes]:
        if is_plain(chunk) is None:
            try:
                return [marshal.dumps(item, MARSHAL_VERSION) for item in chunk]
            except ValueError:  # nested too deeply for marshal
                pass
        self._pickled = True
        return [self._pickle(item) for item in chunk]

    def _pickle(self, item: Any) -> bytes:
        file = io.BytesIO()
        _ItemPickler(file, self).dump(item)
        return file.getvalue()

    def number(self, obj: Any) -> int:
        """The number of a class or function among the side objects."""
        number = self._numbers.get(id(obj))
        if number is None:
            number = self._numbers[id(obj)] = len(self.side_objects)
            self.side_objects.append(obj)
        return number

    def finish(self) -> dict[str, Any]:
        return {**super().finish(), "pickled": self._pickled}


class _ItemPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, items: _Items) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._items = items

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, types.FunctionType)):
            module = getattr(obj, "__module__", None)
            if module in ("__main__", "__mp_main__", None) or "<locals>" in getattr(obj, "__qualname__", ""):
                return known_object, (self._items.number(obj),)
        if (
            type(obj) is torch.Tensor
            and obj.layout is torch.strided
            and obj.device.type == "cpu"
            and not obj.requires_grad
        ):
            try:
                return tensor_from, (obj.numpy(),)  # torch itself would write an archive for each tensor
            except (TypeError, RuntimeError):  # numpy lacks this type
                pass
        return NotImplemented


_LAYOUTS: tuple[Any, ...] = (_Words, _Texts, _Blobs, _Records, _Items)


def write_items(
    writer: Writer, items: Iterable[Any], reopen: Reopen, layouts: tuple[Any, ...] = _LAYOUTS
) -> tuple[Writer, dict[str, Any], list[Any]]:
    """Write items in the first of the layouts that fits all of them.

    Returns the writer (a new one, if items had to be written again), the head, and the side objects.
    `reopen` reads back what was written.
    """
    source, began = iter(items), writer.at
    column: Any = None
    size, count = FIRST_CHUNK, 0
    while chunk := list(itertools.islice(source, size)):
        if column is None:
            column, layouts = _first_fit(chunk, writer, layouts)
        else:
            try:
                column.add(chunk)
            except Misfit:
                head = column.finish()
                written = reopen(writer.peek(), head, [])
                return write_items(writer.again(began), itertools.chain(written, chunk, source), reopen, layouts)
        count += len(chunk)
        size = max(1, min(CHUNK, CHUNK_BYTES * count // max(1, writer.at - began)))
    if column is None:
        return writer, {"layout": "words", "kind": "q", "at": 0, "count": 0}, []
    return writer, column.finish(), column.side_objects


def _first_fit(chunk: list[Any], writer: Writer, layouts: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Write the first chunk in the first layout that fits it; return it and the layouts after it."""
    for place, layout in enumerate(layouts):
        with contextlib.suppress(Misfit):
            column = layout(chunk[0], writer)
            column.add(chunk)
            return column, layouts[place + 1 :]
    raise AssertionError("the last layout fits anything")
