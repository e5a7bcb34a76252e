"""Write a batch into a slot: one pickler for whatever a collate function returns.

Tensors become (offset, dtype, size, stride) and their bytes go into the slot; those that
`collating` already put there are not copied. Protocol-5 buffers of other objects (numpy, pandas,
Arrow) are copied into the slot too. The rest is the pickle stream. Quantised, nested and
subclassed tensors and parameters use torch's own reductions, which end in storages; those go into
the slot.
"""

from __future__ import annotations

import ctypes
import functools
import io
import math
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing import reductions

from unjam.loader.transport import classes, unpacking
from unjam.loader.transport.slots import Arena
from unjam.loader.transport.unpacking import PackedBatch

# Smaller buffers are cheaper inside the stream.
SMALLEST_BUFFER = 512
# A larger stream goes into the slot.
LARGEST_STREAM = 1 << 15
# Tensors up to this size are cheaper inside the stream, and get their own memory in the parent.
SMALL_TENSOR = 1 << 13
# Batches up to this size go in the message: cheaper than a lease.
LARGEST_INLINE = 1 << 13


class Packer:
    """Packs batches into one worker's arena.

    `by_value`: this worker does not have the user's `__main__`, so classes and functions defined
    there are pickled by value, and become the parent's own again. Otherwise we try to pickle by
    name first.
    """

    def __init__(self, arena: Arena, *, by_value: bool) -> None:
        self._arena = arena
        self._by_value = by_value

    def pack(self, batch: object) -> PackedBatch:
        """Pickle `batch`, in this thread; raise whatever pickling raises."""
        used = self._arena.used
        try:
            return self._seal(*self._dump(batch, _CautiousPickler if self._by_value else _ByNamePickler))
        except (pickle.PicklingError, AttributeError, TypeError):
            # Pickling by name failed or is not allowed: pickle by value, as we do for the dataset.
            self._arena.used = used
            return self._seal(*self._dump(batch, _ByValuePickler))

    def _dump(self, batch: object, pickler: Callable[..., Any]) -> tuple[bytes, list[unpacking.BufferAt]]:
        stream = io.BytesIO()
        buffers: list[unpacking.BufferAt] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < SMALLEST_BUFFER:
                return True
            buffers.append(unpacking.BufferAt(self._arena.write(raw), raw.nbytes, raw.readonly))
            return False

        pickler(stream, keep, _Sink(self._arena)).dump(batch)
        return stream.getvalue(), buffers

    def _seal(self, stream: bytes, buffers: list[unpacking.BufferAt]) -> PackedBatch:
        arena = self._arena
        stream_at = None
        if len(stream) > LARGEST_STREAM:
            stream_at = (arena.write(memoryview(stream)), len(stream))
            stream = b""
        if arena.used <= LARGEST_INLINE or not arena.shareable:
            return PackedBatch(stream, stream_at, tuple(buffers), None, data=arena.take_bytes())
        return PackedBatch(stream, stream_at, tuple(buffers), arena.finish())


class _Sink:
    """Writes the bytes of tensors and storages into the arena or the stream."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._storages: dict[int, tuple[int, torch.UntypedStorage]] = {}
        self._in_stream = 0
        # by storage: total bytes of the tensors over it so far
        self._views: dict[int, int] = {}

    def tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cpu":
            return NotImplemented if tensor.device.type == "meta" else reductions.reduce_tensor(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "a batch holds a tensor that requires grad and is the result of a computation; the graph behind it "
                "cannot be sent to another process: call .detach() on it, or compute it in the training process"
            )
        if tensor.layout in SPARSE_PARTS:
            return reduce_sparse(tensor)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return NotImplemented
        if tensor.requires_grad:
            return unpacking.rebuild_leaf, (tensor.detach(),)
        if tensor.is_conj() or tensor.is_neg():
            # its memory holds other values than its elements
            tensor = tensor.resolve_conj().resolve_neg()
        size = tuple(tensor.shape)
        dtype = tensor.dtype
        nbytes = math.prod(size) * dtype.itemsize
        if nbytes == 0:
            return unpacking.rebuild_empty, (dtype, size)
        storage = tensor.untyped_storage()
        if nbytes > SMALL_TENSOR:
            self._views[storage.data_ptr()] = seen = self._views.get(storage.data_ptr(), 0) + nbytes
        else:
            seen = nbytes
        if seen > storage.nbytes():
            # Overlapping memory (expand, unfold, many views): the storage is smaller.
            at, length = self._storage_at(storage)
            return unpacking.rebuild_view, (at, length, dtype, size, tensor.stride(), tensor.storage_offset())
        if nbytes <= SMALL_TENSOR and self._in_stream < LARGEST_INLINE and tensor.is_contiguous():
            self._in_stream += nbytes
            return unpacking.rebuild_small, (ctypes.string_at(tensor.data_ptr(), nbytes), dtype, size)
        stride = None if tensor.is_contiguous() else _dense_stride(tensor)
        at_once = self._arena.offset_of(tensor.data_ptr(), nbytes) if tensor.is_contiguous() else None
        if at_once is not None:
            return unpacking.rebuild_tensor, (at_once, dtype, size, None)
        offset = self._arena.place(nbytes)
        target = self._arena.at(offset, nbytes // dtype.itemsize, dtype)
        (target.resize_(size) if stride is None else target.as_strided_(size, stride)).copy_(tensor)
        return unpacking.rebuild_tensor, (offset, dtype, size, stride)

    def storage(self, storage: torch.UntypedStorage) -> Any:
        if storage.device.type != "cpu":
            return NotImplemented
        if storage.nbytes() == 0:
            return torch.UntypedStorage, (0,)
        return unpacking.rebuild_storage, self._storage_at(storage)

    def _storage_at(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        key, length = storage.data_ptr(), storage.nbytes()
        known = self._storages.get(key)
        if known is not None and known[1].nbytes() == length:
            return known[0], length
        offset = self._arena.offset_of(key, length)
        if offset is None:
            offset = self._arena.place(length)
            self._arena.at(offset, length, torch.uint8).untyped_storage().copy_(storage)
        self._storages[key] = (offset, storage)
        return offset, length


# By layout, the methods that return the parts of a sparse tensor; the public ones of COO need a coalesced tensor.
_COMPRESSED_ROWS = ("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS = ("ccol_indices", "row_indices", "values")
SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}


def reduce_sparse(tensor: torch.Tensor) -> Any:
    """Reduce to its parts; torch's own way keeps sparse tensors alive until the next torch.load."""
    parts = tuple(getattr(tensor, part)().detach() for part in SPARSE_PARTS[tensor.layout])
    coalesced = tensor.is_coalesced() if tensor.layout is torch.sparse_coo else None
    return unpacking.rebuild_sparse, (tensor.layout, parts, tuple(tensor.shape), coalesced, tensor.requires_grad)


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides of a compact copy in the same memory format; None if it is contiguous."""
    stride = tuple(torch.empty_like(tensor, device="meta").stride())
    contiguous = tuple(torch.empty(tensor.shape, device="meta").stride())
    return None if stride == contiguous else stride


class _ByNamePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], bool], sink: _Sink) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)
        self._sink = sink

    def reducer_override(self, obj: Any) -> Any:
        return _reduce(self._sink, obj)


class _CautiousPickler(_ByNamePickler):
    """Pickles by name, but only what the parent finds by that name; faster, and enough for most."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(self._sink, obj)
        if reduced is NotImplemented:
            named = obj if isinstance(obj, (type, types.FunctionType)) else type(obj)
            if not _found_by_name(named):
                raise pickle.PicklingError(f"{named!r} travels by value")
        return reduced


@functools.lru_cache(maxsize=4096)
def _found_by_name(obj: Any) -> bool:
    if obj.__module__ in ("__main__", "__mp_main__"):
        return False
    found: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


class _ByValuePickler(classes.ToParentPickler):
    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], bool], sink: _Sink) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=keep)
        self._sink = sink

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(self._sink, obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _reduce(sink: _Sink, obj: Any) -> Any:
    kind = type(obj)
    if kind is torch.Tensor:
        return sink.tensor(obj)
    if kind is torch.UntypedStorage:
        return sink.storage(obj)
    if kind is torch.storage.TypedStorage:
        return unpacking.rebuild_typed, (obj._untyped_storage, obj.dtype)  # noqa: SLF001 - the public accessor warns
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return _reduce_array(obj)
    return NotImplemented


def _reduce_array(array: Any) -> Any:
    """Send arrays writeable and in native byte order, as torch's workers do."""
    dtype = array.dtype
    if (array.flags.writeable and dtype.isnative) or dtype.hasobject or not array.size:
        return NotImplemented
    order = "F" if array.flags.fnc else "C"
    return array.astype(dtype.newbyteorder("="), order=order).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
