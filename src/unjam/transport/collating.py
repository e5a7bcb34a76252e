"""torch's default collate, stacking straight into the slot.

torch's own function walks the structure; only what it does with a batch of tensors is replaced, in the worker's process
alone, through the table torch documents for that purpose. So a user's collate function that calls `default_collate`
is served as well, and no worker ever opens a segment in /dev/shm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate as torch_collate

from unjam.transport.slots import Arena

# smaller tensors are cheaper to stack in ordinary memory and copy; a batch of this size travels in the message
SMALLEST_STACK = 1 << 13


def install(arena: Arena) -> None:
    """Let torch's default collate in this process stack into `arena` while a batch is made."""
    table = torch_collate.default_collate_fn_map
    if table.get(torch.Tensor) is not torch_collate.collate_tensor_fn:
        return  # the user put a function of their own there

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return _stack(arena, batch, collate_fn_map)

    table[torch.Tensor] = stack


def additions() -> dict[Any, Callable[..., Any]]:
    """What the user added to torch's table of collate functions."""
    return {
        kind: function
        for kind, function in torch_collate.default_collate_fn_map.items()
        if getattr(function, "__module__", None) not in (torch_collate.__name__, __name__)
    }


def _stack(arena: Arena, batch: Any, collate_fn_map: Any) -> Any:
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # it knows what to say
    if first.device.type != "cpu":
        return torch.stack(batch, 0)
    size = (len(batch), *first.shape)
    out = None
    if arena.usable and len(batch) * first.numel() * first.dtype.itemsize >= SMALLEST_STACK:
        out = arena.tensor(size, first.dtype)
    if out is None:
        out = torch.empty(size, dtype=first.dtype)
    if type(first) is not torch.Tensor:
        # a subclass decides itself what its new tensor over this memory is
        storage = torch.storage.TypedStorage(wrap_storage=out.untyped_storage(), dtype=first.dtype, _internal=True)
        out = first.new(storage).resize_(size)
    return torch.stack(batch, 0, out=out)
