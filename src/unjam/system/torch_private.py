"""Every private part of torch that unjam uses, looked up in one place.

torch may move or remove private and deprecated names. On import, this module finds out which ones are
missing. What happens then:

- If a part that our iterators need is missing (`needed`), torch's own iterator takes over, and a
  warning says so once.
- Without data pipes, no dataset counts as one. Without the profiler's switch, every batch takes
  torch's own, slower path. Without one of torch's settings, workers use its default.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data

needed: list[str] = []


def _part(path: str, *, optional: bool = False) -> Any:
    """The object at a dotted path, or None; a missing one is listed in `needed` unless optional."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        if not optional:
            needed.append(path)
        return None


class _Nothing:
    """Replaces a class that torch lacks: no object is an instance of it."""


# -- what our iterators need -----------------------------------------------------------------------

_DATALOADER = "torch.utils.data.dataloader"
BaseIterator: Any = _part(f"{_DATALOADER}._BaseDataLoaderIter") or _Nothing
WorkersIterator: Any = _part(f"{_DATALOADER}._MultiProcessingDataLoaderIter") or _Nothing
InlineIterator: Any = _part(f"{_DATALOADER}._SingleProcessDataLoaderIter") or _Nothing
DatasetKind: Any = _part(f"{_DATALOADER}._DatasetKind")
sharding_worker_init_fn: Any = _part(f"{_DATALOADER}._sharding_worker_init_fn", optional=True)

_UTILS = "torch.utils.data._utils"
worker_module: Any = _part(f"{_UTILS}.worker")
WorkerInfo: Any = _part(f"{_UTILS}.worker.WorkerInfo")
generate_state: Callable[[int, int], Any] = _part(f"{_UTILS}.worker._generate_state")
default_collate_fn_map: dict[Any, Any] = _part(f"{_UTILS}.collate.default_collate_fn_map")
collate_tensor_fn: Any = _part(f"{_UTILS}.collate.collate_tensor_fn")
collate: Any = _part(f"{_UTILS}.collate.collate")
collate_str_fn: Any = _part(f"{_UTILS}.collate.collate_str_fn")
default_collate: Callable[[Any], Any] = _part(f"{_UTILS}.collate.default_collate")
pin_memory: Any = _part(f"{_UTILS}.pin_memory.pin_memory")

# -- what unjam can do without ---------------------------------------------------------------------

profiler_enabled: Callable[[], bool] = _part("torch._C._autograd._profiler_enabled", optional=True) or (lambda: True)
IterDataPipe: Any = _part("torch.utils.data.IterDataPipe", optional=True) or _Nothing
MapDataPipe: Any = _part("torch.utils.data.MapDataPipe", optional=True) or _Nothing
PipeWrapper: Any = _part("torch.utils.data.datapipes.datapipe._DataPipeSerializationWrapper", optional=True) or _Nothing
apply_sharding: Any = _part("torch.utils.data.graph_settings.apply_sharding", optional=True)
apply_random_seed: Any = _part("torch.utils.data.graph_settings.apply_random_seed", optional=True)

# attributes that torch's base iterator sets and our iterators use
_ATTRIBUTES = (
    "_dataset", "_dataset_kind", "_auto_collation", "_drop_last", "_pin_memory", "_pin_memory_device", "_timeout", "_collate_fn",
    "_base_seed", "_sampler_iter", "_num_workers", "_world_size", "_rank", "_persistent_workers", "_num_yielded", "_shared_seed",
    "_next_index", "_reset",
)  # fmt: skip


class Probe(list[int]):
    """The dataset of a loader that is made only to look at torch."""


@functools.cache
def missing() -> tuple[str, ...]:
    """The parts that our iterators need and this torch lacks."""
    found = list(needed)
    if not found:
        # with its own generator, because the base iterator draws a seed from it
        loader: Any = torch.utils.data.DataLoader(Probe([0]), generator=torch.Generator())  # type: ignore[arg-type] # a list will do
        try:
            probe = BaseIterator(loader)
            found += [f"{_DATALOADER}._BaseDataLoaderIter.{name}" for name in _ATTRIBUTES if not hasattr(probe, name)]
        except Exception as error:  # noqa: BLE001 - whatever torch raises, its own iterator takes over
            found.append(f"{_DATALOADER}._BaseDataLoaderIter ({type(error).__name__}: {error})")
    return tuple(found)


def print_options() -> dict[str, Any]:
    """How tensors are printed, as arguments of `torch.set_printoptions`."""
    options = _part("torch._tensor_str.PRINT_OPTS", optional=True)
    names = ("precision", "threshold", "linewidth")
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def set_deterministic(mode: bool, *, warn_only: bool) -> None:  # noqa: FBT001 - as torch's function
    """Like `torch.use_deterministic_algorithms`, without its import of the compiler.

    That import would take two seconds in every worker.
    """
    setter = _part("torch._C._set_deterministic_algorithms", optional=True) or torch.use_deterministic_algorithms
    setter(mode, warn_only=warn_only)


def set_worker_info(**facts: Any) -> None:
    """Set what `get_worker_info()` returns in this process."""
    worker_module._worker_info = WorkerInfo(**facts)  # noqa: SLF001 - torch reads it there
