"""Every private part of torch that unjam uses, looked up in one place.

torch may move or drop what has an underscore or is deprecated. What is missing is found here, when this module is imported, and
the consequence is defined:

- without a part that the iterators are made of (`needed`), torch's own iterator takes over, and a warning says so once;
- without data pipes, no dataset is one; without the profiler's switch, every batch takes torch's own, slower way; without a
  setting of torch's, workers have its default.
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
    """What lies at a dotted path, or None, which is noted unless unjam can do without."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        if not optional:
            needed.append(path)
        return None


class _Nothing:
    """Stands where torch has no such class: nothing is an instance of it."""


# -- what iterators are made of ----------------------------------------------------------------------------------------

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
default_collate: Any = _part(f"{_UTILS}.collate.default_collate")
pin_memory: Any = _part(f"{_UTILS}.pin_memory.pin_memory")
HAS_NUMPY: bool = bool(_part(f"{_UTILS}.HAS_NUMPY", optional=True))

# -- what unjam can do without -----------------------------------------------------------------------------------------

profiler_enabled: Callable[[], bool] = _part("torch._C._autograd._profiler_enabled", optional=True) or (lambda: True)
IterDataPipe: Any = _part("torch.utils.data.IterDataPipe", optional=True) or _Nothing
MapDataPipe: Any = _part("torch.utils.data.MapDataPipe", optional=True) or _Nothing
PipeWrapper: Any = _part("torch.utils.data.datapipes.datapipe._DataPipeSerializationWrapper", optional=True) or _Nothing
apply_sharding: Any = _part("torch.utils.data.graph_settings.apply_sharding", optional=True)
apply_random_seed: Any = _part("torch.utils.data.graph_settings.apply_random_seed", optional=True)

# attributes that torch's base iterator sets and ours use
_ATTRIBUTES = (
    "_dataset", "_dataset_kind", "_auto_collation", "_drop_last", "_pin_memory", "_pin_memory_device", "_timeout", "_collate_fn",
    "_base_seed", "_sampler_iter", "_num_workers", "_world_size", "_rank", "_persistent_workers", "_num_yielded", "_shared_seed",
    "_next_index", "_reset",
)  # fmt: skip


@functools.cache
def missing() -> tuple[str, ...]:
    """What this torch lacks of what iterators are made of."""
    found = list(needed)
    if not found:
        # with a generator of its own: the base iterator draws a seed
        loader: Any = torch.utils.data.DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type] # a list will do
        try:
            probe = BaseIterator(loader)
            found += [f"{_DATALOADER}._BaseDataLoaderIter.{name}" for name in _ATTRIBUTES if not hasattr(probe, name)]
        except Exception as error:  # noqa: BLE001 - whatever another torch raises, its own iterator knows better
            found.append(f"{_DATALOADER}._BaseDataLoaderIter ({type(error).__name__}: {error})")
    return tuple(found)


def print_options() -> dict[str, Any]:
    """How tensors are printed, as `torch.set_printoptions` takes it."""
    options = _part("torch._tensor_str.PRINT_OPTS", optional=True)
    names = ("precision", "threshold", "linewidth")
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def set_deterministic(mode: bool, *, warn_only: bool) -> None:  # noqa: FBT001 - torch's position
    """As the public function, which imports the compiler: two seconds in every worker."""
    setter = _part("torch._C._set_deterministic_algorithms", optional=True) or torch.use_deterministic_algorithms
    setter(mode, warn_only=warn_only)


def set_worker_info(**facts: Any) -> None:
    """What `get_worker_info()` answers in this process."""
    worker_module._worker_info = WorkerInfo(**facts)  # noqa: SLF001 - torch reads it there
