"""The drop-in `DataLoader`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from unjam.pools.starting import ShipCache

T_co = TypeVar("T_co", covariant=True)

_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """`torch.utils.data.DataLoader` with another iterator: the same arguments, the same batches.

    Workers come from a fork server unless `multiprocessing_context` says otherwise; batches cross in recycled memory.
    Two options are unjam's own:

    worker_threads: compute threads in each worker, for torch, BLAS, OpenMP and OpenCV; None leaves them alone.
    memory_budget: the most bytes of batches between sampler and consumer; by default a quarter of what is free. It
        can lower how far workers run ahead, never which worker makes which batch.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001 - torch's position
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,  # noqa: FBT001, FBT002 - torch's position
        drop_last: bool = False,  # noqa: FBT001, FBT002 - torch's position
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        worker_threads: int | None = 1,
        memory_budget: int | None = None,
    ) -> None:
        if worker_threads is not None and worker_threads < 1:
            raise ValueError(f"worker_threads should be at least 1 or None, but got worker_threads={worker_threads}")
        if memory_budget is not None and memory_budget < 1:
            raise ValueError(f"memory_budget should be positive or None, but got memory_budget={memory_budget}")
        newer = {"in_order": in_order} if _TORCH_HAS_IN_ORDER else {}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        self.in_order = in_order
        self.worker_threads = worker_threads
        self.memory_budget = memory_budget
        self._ship_cache = ShipCache()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        from unjam import iterator  # noqa: PLC0415 - nothing is needed before the first epoch

        if self.num_workers == 0:
            return iterator.InlineIterator(self)
        if sys.platform == "win32":
            return super()._get_iterator()  # no descriptors can be passed there; torch's own way still works
        self.check_worker_number_rationality()
        return iterator.WorkersIterator(self)

    def __getstate__(self) -> dict[str, Any]:
        # an iterator belongs to this process; a copy of the loader makes its own
        return {**vars(self), "_iterator": None}
