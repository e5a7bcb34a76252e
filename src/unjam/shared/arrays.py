"""An array that exists once in memory, however many processes read it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from unjam.shared.buffer import Buffer, CopiedByReference, Writer, open_file
from unjam.shared.untrusted import damage_as_value_error

# bytes that are copied at a time, so that a non-contiguous array is never in memory twice
PIECE = 64 << 20


class SharedArray(CopiedByReference):
    """A read-only array over one buffer that every process maps: `SharedArray(array)`.

    array: a numpy array, a tensor, a memory map, or anything that numpy can convert to an array.
        `SharedArray.filled(shape, dtype, fill)` creates one without a second copy in memory.
    path, `open` and pickling work as for `SharedList`.

    numpy treats it as an array (`np.asarray`, arithmetic, indexing). `tensor()` is a tensor over
    the same memory. A tensor cannot be read-only, so a process that writes to it changes only its own
    copy.
    """

    __slots__ = ("__weakref__", "_array", "_buffer", "_head", "_torch")
    # makes numpy call our reflected operators, which convert to numpy arrays first
    __array_priority__ = 100
    _buffer: Buffer
    _head: dict[str, Any]
    _array: Any
    _torch: Any

    def __new__(cls, array: Any, *, path: str | os.PathLike[str] | None = None) -> SharedArray:  # noqa: PYI034 - open_array creates the object
        """Copy an array into a new buffer."""
        source, kind = _as_numpy(array)
        if source.dtype.hasobject:
            raise TypeError("cannot share an array of Python objects; use SharedList(array.tolist())")
        writer = Writer(path)
        if source.flags.c_contiguous:
            writer.write(source.reshape(-1).view(np.uint8) if source.size else b"")
        else:
            rows = max(1, PIECE // max(1, source.nbytes // max(1, len(source)))) if source.ndim else 1
            for first in range(0, len(source), rows):
                writer.write(np.ascontiguousarray(source[first : first + rows]).reshape(-1).view(np.uint8))
        return _finish(writer, np.lib.format.dtype_to_descr(source.dtype), source.shape, kind)

    @classmethod
    def filled(
        cls, shape: int | tuple[int, ...], dtype: Any, fill: Any, *, path: str | os.PathLike[str] | None = None
    ) -> SharedArray:
        """A new array, filled piece by piece: `fill(piece, first)`.

        piece: a numpy array of zeros to write into. first: the index of its first row.
        """
        whole, kind = (int(shape),) if not isinstance(shape, (tuple, list)) else tuple(shape), np.dtype(dtype)
        if not whole:
            raise ValueError("shape=() is a single number, which cannot be filled in pieces")
        writer = Writer(path)
        row = kind.itemsize * int(np.prod(whole[1:], dtype=np.int64))
        rows = max(1, PIECE // max(1, row))
        for first in range(0, whole[0], rows):
            piece = np.zeros((min(rows, whole[0] - first), *whole[1:]), kind)
            fill(piece, first)
            writer.write(piece.reshape(-1).view(np.uint8))
        return _finish(writer, np.lib.format.dtype_to_descr(kind), whole, None)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SharedArray:
        """Open the array that was written to a file. It holds no objects, so any file is safe."""
        buffer, head = open_file(path, "array")
        with damage_as_value_error(path):
            _check_tensor_type(head["array"]["tensor"])
            return open_array(buffer, head["array"])

    def numpy(self) -> Any:
        """The read-only numpy array over the shared memory."""
        if self._head["tensor"]:
            raise TypeError(f"numpy has no type {self._head['tensor']}: use .tensor()")
        return self._array

    def tensor(self) -> Any:
        """A tensor over the same memory; writes to it stay in this process."""
        if self._torch is None:
            self._torch = torch.from_numpy(_view(self._buffer, self._head))
            if self._head["tensor"]:
                self._torch = self._torch.view(getattr(torch, self._head["tensor"]))
        return self._torch

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - numpy's signature
        array = self.numpy()
        if copy or (dtype is not None and dtype != array.dtype):
            return array.astype(dtype or array.dtype)
        return array

    @property
    def _readable(self) -> Any:
        """The array, or a tensor if numpy lacks the type."""
        return self.tensor() if self._head["tensor"] else self._array

    def __getitem__(self, index: Any) -> Any:
        return self._readable[index]

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._readable)

    def __contains__(self, value: object) -> bool:
        return value in self._readable

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._readable, name)

    def __repr__(self) -> str:
        kind = self._head["tensor"] or self._array.dtype
        return f"SharedArray({self._array.shape}, {kind}, {self._array.nbytes / 1e6:,.1f} MB)"

    def __reduce__(self) -> Any:
        return open_array, (self._buffer, self._head)


def _arithmetic(name: str) -> Any:
    def operation(self: SharedArray, *others: Any) -> Any:
        plain = [other.numpy() if isinstance(other, SharedArray) else other for other in others]
        return getattr(self.numpy(), name)(*plain)

    operation.__name__ = name
    return operation


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow",
    "matmul", "rmatmul", "neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "bool", "int", "float", "index", "and", "or",
    "xor", "lshift", "rshift", "rand", "ror", "rxor", "rlshift", "rrshift", "divmod", "rdivmod", "round", "format",
):  # fmt: skip
    setattr(SharedArray, f"__{_name}__", _arithmetic(f"__{_name}__"))
SharedArray.__hash__ = None  # type: ignore[assignment] # as an array's


def _as_numpy(array: Any) -> tuple[Any, str | None]:
    """A numpy array, and torch's name of the type if numpy lacks that type."""
    if isinstance(array, SharedArray):
        return array._array, array._head["tensor"]  # noqa: SLF001 - the same class
    if isinstance(array, torch.Tensor):
        if array.layout is not torch.strided or array.is_quantized or array.is_nested:
            raise TypeError(
                f"cannot share a {'quantized' if array.is_quantized else array.layout} tensor as an array; use SharedList"
            )
        array = array.detach().cpu().resolve_conj().resolve_neg()
        try:
            return array.numpy(), None
        except TypeError:  # bfloat16 and the like
            same = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[array.element_size()]
            return array.contiguous().view(same).numpy(), str(array.dtype).removeprefix("torch.")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("cannot share a masked array as one array: share .data and .mask")
    return np.asarray(array), None


def _check_tensor_type(name: Any) -> None:
    if name and not (isinstance(name, str) and isinstance(getattr(torch, name, None), torch.dtype)):
        raise ValueError(f"torch has no type {str(name)[:40]}")


def _finish(writer: Writer, descr: Any, shape: tuple[int, ...], kind: str | None) -> SharedArray:
    head = {"dtype": descr, "shape": list(shape), "tensor": kind or ""}
    return open_array(writer.finish({"what": "array", "array": head}), head)


def _view(buffer: Buffer, head: dict[str, Any]) -> Any:
    descr = head["dtype"]
    dtype, shape = np.lib.format.descr_to_dtype(_with_tuples(descr)), tuple(head["shape"])
    if dtype.hasobject or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"the file is damaged: array type {dtype} with shape {shape} is invalid")
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer.private().owner(), dtype, count).reshape(shape)


def _with_tuples(descr: Any) -> Any:
    """Restore the tuples of a structured type (fields, shapes, pairs of names), which JSON turned into lists."""
    if not isinstance(descr, list):
        return descr
    return [
        (tuple(name) if isinstance(name, list) else name, _with_tuples(kind), *map(tuple, shape))
        for name, kind, *shape in descr
    ]


def open_array(buffer: Buffer, head: dict[str, Any]) -> SharedArray:
    """The array in a buffer."""
    shared = object.__new__(SharedArray)
    shared._buffer, shared._head, shared._torch = buffer, head, None
    shared._array = _view(buffer, head)
    shared._array.flags.writeable = False
    return shared
