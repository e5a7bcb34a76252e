"""A packed batch, and the functions that its pickle stream calls to rebuild it over its memory."""

from __future__ import annotations

import math
import pickle
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unjam.loader.transport.channel import NOT_SENT
from unjam.loader.transport.slots import Filling


@dataclass(frozen=True, slots=True)
class BufferAt:
    """The position of a protocol-5 buffer in the batch's memory."""

    offset: int
    nbytes: int
    readonly: bool


@dataclass(slots=True)
class PackedBatch:
    """A batch on its way from the worker to the training process.

    The packer writes the first four fields: the pickle stream, or where it lies in the slot; the buffers that
    it refers to; and the slot, if the batch lies in one. Otherwise `data` has its bytes, which follow the
    message. The worker adds the rest: `times` (the job's timestamps), `failures`, `profile` and `position_update` are
    bytes that are decoded only on demand. retired: slots that the worker does not use any more.
    """

    stream: bytes
    stream_at: tuple[int, int] | None
    buffers: tuple[BufferAt, ...]
    filling: Filling | None
    batch: int = -1
    retired: tuple[int, ...] = ()
    samples: int = 0
    times: bytes = b""
    failures: bytes = b""
    profile: bytes = b""
    position_update: bytes = b""
    data: bytes = field(default=b"", metadata=NOT_SENT)

    @property
    def nbytes(self) -> int:
        """Size of the batch in bytes, wherever they are."""
        return (self.filling.used if self.filling else len(self.data)) + len(self.stream)

    def without_slot(self, data: bytes = b"") -> PackedBatch:
        """Return a copy whose bytes are not in a slot."""
        return replace(self, filling=None, retired=(), data=data)

    def unpack(self, owner: Any) -> Any:
        """Rebuild the batch over `owner`, which lives as long as the batch uses its memory."""
        stream: bytes | memoryview = self.stream
        views: list[memoryview] = []
        if self.buffers or self.stream_at:
            view = memoryview(owner).cast("B")
            views = [_window(view, buffer) for buffer in self.buffers]
            if self.stream_at:
                stream = view[self.stream_at[0] : self.stream_at[0] + self.stream_at[1]]
        outer, _memory.owner = _memory.owner, owner
        try:
            return pickle.loads(stream, buffers=views)
        finally:
            _memory.owner = outer


class _Memory(threading.local):
    """The memory of the batch that this thread is rebuilding."""

    owner: Any = None


_memory = _Memory()


def _window(view: memoryview, buffer: BufferAt) -> memoryview:
    window = view[buffer.offset : buffer.offset + buffer.nbytes]
    return window.toreadonly() if buffer.readonly else window


def rebuild_tensor(
    offset: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...] | None
) -> torch.Tensor:
    """Return a tensor over the batch's memory, with a storage of exactly its own bytes."""
    flat = torch.frombuffer(_memory.owner, dtype=dtype, count=math.prod(size), offset=offset)
    return flat.resize_(size) if stride is None else flat.as_strided_(size, stride)


def rebuild_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that requires grad and has no history."""
    return tensor.requires_grad_()


def rebuild_small(data: bytes, dtype: torch.dtype, size: tuple[int, ...]) -> torch.Tensor:
    """Return a small tensor with its own memory."""
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    return flat if len(size) == 1 else flat.resize_(size)


def rebuild_view(
    offset: int, nbytes: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], start: int
) -> torch.Tensor:
    """Return a tensor whose elements may share memory with each other."""
    flat = torch.frombuffer(_memory.owner, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)
    return flat.as_strided_(size, stride, start)


def rebuild_empty(dtype: torch.dtype, size: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor without elements."""
    return torch.empty(size, dtype=dtype, device="cpu")


def rebuild_sparse(
    layout: torch.layout,
    parts: tuple[torch.Tensor, ...],
    size: tuple[int, ...],
    coalesced: bool | None,  # noqa: FBT001 - called by pickle
    requires_grad: bool,  # noqa: FBT001 - called by pickle
) -> torch.Tensor:
    """Return a sparse tensor made from its parts."""
    tensor: torch.Tensor
    make: Any  # torch's type stubs are incomplete for these
    if layout is torch.sparse_coo:
        make = torch.sparse_coo_tensor
        tensor = make(*parts, size, is_coalesced=coalesced, check_invariants=False)
    else:
        make = torch.sparse_compressed_tensor
        tensor = make(*parts, size, layout=layout, check_invariants=False)
    return tensor.requires_grad_(requires_grad)


def rebuild_storage(offset: int, nbytes: int) -> torch.UntypedStorage:
    """Return a storage over the batch's memory."""
    return torch.frombuffer(_memory.owner, dtype=torch.uint8, count=nbytes, offset=offset).untyped_storage()


def rebuild_typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """Return torch's older, typed storage over a plain one."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
