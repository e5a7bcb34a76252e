"""torch's default collate, stacking directly into the slot.

torch's own function walks the structure. We replace only how it collates a batch of tensors, only
in the worker process, through the table that torch documents for this purpose. So it also works
for a user's collate function that calls `default_collate`, and no worker opens a segment in
/dev/shm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from unjam.loader.transport.slots import Arena
from unjam.system import torch_private as private

# Smaller results are cheaper to stack in ordinary memory; such a batch is sent in the message.
SMALLEST_STACK = 1 << 13


def install(arena: Arena, *, strict: bool) -> Callable[[Any], Any]:
    """Let torch's default collate in this process stack into `arena` while a batch is made.

    `strict`: default_collate is the loader's collate_fn; raise where torch would silently mix
    types. A user's collate_fn that calls it gets torch's behaviour.
    Return the same collate without checks.
    """
    table = private.default_collate_fn_map
    if table.get(torch.Tensor) is not private.collate_tensor_fn:
        return private.default_collate  # the user has replaced it

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if strict:
            _same_dtype(batch)
        return _stack(arena, batch, collate_fn_map)

    def stack_anything(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return _stack(arena, batch, collate_fn_map)

    tolerant = {**table, torch.Tensor: stack_anything}
    table[torch.Tensor] = stack
    if strict:
        table.update(_checks())
    return functools.partial(private.collate, collate_fn_map=tolerant)


def is_default(collate: Any) -> bool:
    """Return whether this is torch's default collate."""
    return collate is private.default_collate


def checked(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return default_collate with the workers' checks, without changing torch's table.

    For the training process, where the table belongs to the user.
    """
    table = private.default_collate_fn_map
    if not is_default(collate) or table.get(torch.Tensor) is not private.collate_tensor_fn:
        return collate

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        _same_dtype(batch)
        return private.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    def collate_checked(batch: Any) -> Any:
        return private.collate(batch, collate_fn_map={**table, **_checks(), torch.Tensor: stack})

    return collate_checked


def additions() -> dict[Any, Callable[..., Any]]:
    """Return what the user added to torch's table of collate functions."""
    return {
        kind: function
        for kind, function in private.default_collate_fn_map.items()
        if getattr(function, "__module__", None) not in (private.default_collate.__module__, __name__)
    }


def _same_dtype(batch: Any) -> None:
    """Raise if dtypes differ: stacking would cast, depending on order and number of workers."""
    if [tensor.dtype for tensor in batch].count(batch[0].dtype) != len(batch):
        raise TypeError("tensors of different dtypes in one batch")


# cached checks, by the content of the table
_known: dict[tuple[Any, ...], dict[Any, Callable[..., Any]]] = {}


def _checks() -> dict[Any, Callable[..., Any]]:
    """Return functions for torch's table that raise where torch would silently mix types."""
    table = private.default_collate_fn_map
    now = (*table, *map(id, table.values()))
    if now not in _known:
        _known.clear()
        _known[now] = _find_checks(table)
    return _known[now]


def _find_checks(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    checks = {dict: _collate_dicts, list: _collate_sequences, tuple: _collate_sequences}
    # A user function for mappings or sequences in general takes precedence.
    taken = {kind for kind in checks for known in table if isinstance(known, type) and issubclass(kind, known)}
    found = {kind: function for kind, function in checks.items() if kind not in taken}
    for kind in (str, bytes):
        if table.get(kind) is private.collate_str_fn:
            found[kind] = _collate_strings
    return found


def _collate_strings(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate as torch does, but raise if strings are mixed with other types."""
    del collate_fn_map
    if not all(issubclass(kind, (str, bytes)) for kind in set(map(type, batch))):
        raise TypeError("strings mixed with other types in one batch")
    return batch


def _collate_sequences(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate as torch does, but raise if lists are mixed with e.g. dicts or strings."""
    first = batch[0]
    if type(first) is not list and type(first) is not tuple:
        return _collate_subclass(batch, collate_fn_map)
    if not all(issubclass(kind, (list, tuple)) for kind in set(map(type, batch))) or set(map(len, batch)) != {
        len(first)
    }:
        raise RuntimeError("sequences of different lengths, or sequences mixed with other types, in one batch")
    return [private.collate(parts, collate_fn_map=collate_fn_map) for parts in zip(*batch, strict=True)]


def _collate_subclass(batch: Any, collate_fn_map: Any) -> Any:
    """Collate a subclass with torch, which can make an object of the same class."""
    rest = {kind: function for kind, function in collate_fn_map.items() if kind not in (dict, list, tuple)}
    return private.collate(batch, collate_fn_map=rest)


def _collate_dicts(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate as torch does, but raise for keys that the first sample lacks; torch drops them."""
    first = batch[0]
    if type(first) is not dict:
        return _collate_subclass(batch, collate_fn_map)
    keys = first.keys()
    if any(sample.keys() != keys for sample in batch):
        raise KeyError("samples with different keys in one batch")
    return {key: private.collate([sample[key] for sample in batch], collate_fn_map=collate_fn_map) for key in first}


def _stack(arena: Arena, batch: Any, collate_fn_map: Any) -> Any:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return private.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # raises the right error
    if first.device.type != "cpu" or first.is_quantized:
        return torch.stack(batch, 0)
    size = (len(batch), *first.shape)
    out = None
    if arena.usable and len(batch) * first.numel() * first.dtype.itemsize >= SMALLEST_STACK:
        out = arena.tensor(size, first.dtype)
    if out is None:
        out = torch.empty(size, dtype=first.dtype)
    if type(first) is not torch.Tensor:
        # The subclass decides which tensor to make over this memory.
        storage = torch.storage.TypedStorage(wrap_storage=out.untyped_storage(), dtype=first.dtype, _internal=True)
        out = first.new(storage).resize_(size)
    return torch.stack(batch, 0, out=out)
