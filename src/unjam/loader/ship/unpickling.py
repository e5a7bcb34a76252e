"""Functions that the pickle stream of a dataset calls in the worker, see NOTE [ By value ]."""

from __future__ import annotations

import functools
import importlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import torch

_inherited: list[int] = []


@contextmanager
def descriptors(fds: list[int]) -> Iterator[None]:
    """Make the payload's descriptors available while the payload is rebuilt."""
    _inherited[:] = fds
    try:
        yield
    finally:
        _inherited.clear()


class Inherited:
    """A descriptor, given by its position among the payload's descriptors."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """Return the descriptor in this process."""
        return _inherited[self.place]


def shared_bytes(place: int, offset: int, nbytes: int) -> memoryview:
    """Map memory that the parent shares with other processes, by a payload descriptor."""
    shift = offset % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(_inherited[place], shift + nbytes, offset=offset - shift)
    os.close(_inherited[place])
    return memoryview(mapping)[shift:]


def namespace_of(module: str) -> dict[str, Any]:
    """Return the variables of one of the program's modules."""
    return vars(importlib.import_module(module))


def storage_of(memory: Any) -> torch.UntypedStorage:
    """Return a storage over memory of the payload."""
    view = memoryview(memory)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()


def tensor_of(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,  # noqa: FBT001 - called by pickle
) -> torch.Tensor:
    """Return a plain tensor over a storage that other tensors may share."""
    tensor = torch.empty((0,), dtype=dtype, device="cpu").set_(storage, offset, size, stride)
    return tensor.requires_grad_(requires_grad)


def reopen(path: str, text: tuple[str, str | None] | None, unbuffered: bool, position: int) -> IO[Any]:  # noqa: FBT001
    """Open for reading a file that the parent has open, with its own file offset."""
    file: IO[Any]
    if text is not None:
        file = open(path, encoding=text[0], errors=text[1])
    else:
        file = open(path, "rb", buffering=0 if unbuffered else -1)
    file.seek(position)
    return file


def memmap_of(
    path: str, mode: Any, offset: int, kind: type, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Any:
    """Map the same part of the same file again."""
    if not all(shape):
        return np.empty(shape, dtype)
    span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    raw = np.memmap(path, np.uint8, mode, offset, (span,))
    # as_strided keeps `raw`, and so the mapping, alive as its base.
    array = np.lib.stride_tricks.as_strided(raw[: dtype.itemsize].view(dtype), shape, strides, subok=True)
    return array.view(kind)


def windows_of(memory: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return an array whose elements may share memory with each other."""
    start = np.frombuffer(memory, np.uint8)[: dtype.itemsize].view(dtype)
    return np.lib.stride_tricks.as_strided(start, shape, strides)


def cached_of(function: Any, parameters: dict[str, Any]) -> Any:
    """Wrap a function in a new, empty lru_cache."""
    return functools.lru_cache(**parameters)(function)
