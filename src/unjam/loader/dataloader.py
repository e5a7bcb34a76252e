"""The drop-in `DataLoader`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import sys
import time
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, Sampler

from unjam.errors import SampleError
from unjam.loader import attached
from unjam.loader.driver.auto_size import Pacer, divides_itself, first_size
from unjam.loader.driver.recorder import Recorder
from unjam.loader.options import DEFAULTS, AutoWorkers, OnError, check_options
from unjam.loader.pool import fork_server
from unjam.loader.pool.start import ShipCache
from unjam.statistics import Statistics
from unjam.system import torch_private
from unjam.system.logs import log

if TYPE_CHECKING:
    from unjam.loader.incident import Incident

T_co = TypeVar("T_co", covariant=True)

# whether it was said that this torch lacks something
_warned: list[bool] = []

_TORCH_HAS_IN_ORDER = "in_order" in inspect.signature(torch.utils.data.DataLoader.__init__).parameters


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """`torch.utils.data.DataLoader` with another iterator: the same arguments, the same batches.

    Workers come from a fork server unless `multiprocessing_context` says otherwise; batches cross in recycled memory.
    These options are unjam's own:

    num_workers: as torch's, or "auto": as many workers, running as far ahead, as the training needs and the machine allows,
        measured and changed while it runs. Random numbers then belong to the batch, so that what is delivered does not
        depend on how many there are. An iterable's workers change between epochs only, and it has one until its code is seen
        to ask `get_worker_info()`. `statistics().auto` says what was chosen and why.
    on_error: what becomes of a sample that fails: "raise" (default); "skip" (the batch is smaller); "replace" (another
        sample of the batch, or a recent one, takes its place); "retry" (`retries` times, with pauses that double, then
        raise); or a function that gets a `SampleError` and returns one of these words, called in this process.
    retries: how often a sample is tried again, by "retry" or by a function that says so.
    max_errors: how many samples may be skipped or replaced in an epoch, as a number or (a float) as a fraction of it.
    error_log: a file that gets one line of JSON for each failure; `unjam errors FILE` shows it.
    sample_timeout: seconds that one sample may take; past that its worker is stopped and replaced, and `on_error` decides.
        It needs workers: nothing can stop a sample in this process.
    warn_after: seconds without a batch after which the log explains who is on what, and where; None for never.
    on_worker_death: "restart" (a new worker makes the lost batches again) or "raise".
    max_restarts: how many workers may be replaced in an epoch.
    worker_threads: compute threads in each worker, for torch, BLAS, OpenMP and OpenCV; None leaves them alone.
    memory_budget: the most bytes of batches between sampler and consumer; by default a quarter of what is free. It
        can lower how far workers run ahead, never which worker makes which batch.
    profile: find out which transform and which line the time goes to; `statistics().profile` tells.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001 - torch's position
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
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
        on_error: OnError = "raise",
        retries: int = 3,
        max_errors: float | None = None,
        error_log: str | os.PathLike[str] | None = None,
        sample_timeout: float | None = None,
        warn_after: float | None = 30.0,
        on_worker_death: Literal["restart", "raise"] = "restart",
        max_restarts: int = 1000,
        worker_threads: int | None = 1,
        memory_budget: int | None = None,
        profile: bool = False,
    ) -> None:
        check_options(
            on_error=on_error,
            retries=retries,
            max_errors=max_errors,
            error_log=error_log,
            sample_timeout=sample_timeout,
            warn_after=warn_after,
            on_worker_death=on_worker_death,
            max_restarts=max_restarts,
            worker_threads=worker_threads,
            memory_budget=memory_budget,
            profile=profile,
        )
        if num_workers == "auto" or isinstance(num_workers, AutoWorkers):
            num_workers = AutoWorkers(first_size(dataset, iterable=isinstance(dataset, IterableDataset)))
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
        self.on_error = on_error
        self.retries = retries
        self.max_errors = max_errors
        self.error_log = error_log
        self.sample_timeout = sample_timeout
        self.warn_after = warn_after
        self.on_worker_death = on_worker_death
        self.max_restarts = max_restarts
        self.worker_threads = worker_threads
        self.memory_budget = memory_budget
        self.profile = profile
        self._ship_cache = ShipCache()
        self._pacer: Pacer | None = None
        if isinstance(num_workers, AutoWorkers):
            self._pacer = _pacer(self, num_workers, prefetch_factor)
        path = None if error_log is None else os.path.abspath(os.fspath(error_log))
        self._recorder = Recorder(path, max_errors, type(dataset).__qualname__, profile=profile)
        if self.num_workers and self.multiprocessing_context is None:
            # it imports torch while the program makes its model
            fork_server.start_early()

    @property
    def errors(self) -> tuple[SampleError, ...]:
        """The last thousand failures, oldest first; the error log has them all."""
        return tuple(self._recorder.errors)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What else went wrong: workers that died, took too long or were suspended; the last thousand."""
        return tuple(self._recorder.incidents)

    def statistics(self) -> Statistics:
        """What this loader has done so far, in all its epochs; pretty when printed."""
        return dataclasses.replace(self._recorder.statistics(), rebuilt=self._ship_cache.rebuilt)

    def _get_iterator(self) -> Any:
        if not can_open(self):
            return super()._get_iterator()
        return open_iterator(self)

    def __getstate__(self) -> dict[str, Any]:
        # an iterator belongs to this process; a copy of the loader makes its own, and keeps its own record
        return {**vars(self), "_iterator": None, "_recorder": copy.copy(self._recorder)}


def _pacer(loader: torch.utils.data.DataLoader[Any], start: int, depth: int | None = None) -> Pacer | None:
    live = not isinstance(loader.dataset, IterableDataset)
    if not live and not isinstance(loader, DataLoader):
        return None
    return Pacer(live=live, start=start, depth=depth, single=not live and not divides_itself(loader.dataset))


def can_open(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Whether an epoch can be unjam's own here; where not, torch's own way still works, and it is said once."""
    if loader.num_workers and sys.platform == "win32":
        return False  # no descriptors can be passed there
    lacks = torch_private.missing()
    if lacks and not _warned:
        _warned.append(True)
        named = ", ".join(lacks[:3])
        log.warning("torch %s has no %s: its own iterator is used, without what unjam adds", torch.__version__, named)
    return not lacks


def open_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """An epoch of unjam's own loader, or of one of torch's that was adopted."""
    begun = time.monotonic_ns()
    from unjam.loader import iterator  # noqa: PLC0415 - nothing is needed before the first epoch

    own: Any = attached.find(loader) or loader
    if loader.num_workers == 0 and own._pacer is None:  # noqa: SLF001 - made for this
        return iterator.InlineIterator(loader)
    loader.check_worker_number_rationality()
    return iterator.WorkersIterator(loader, begun)


def adopt(
    loader: torch.utils.data.DataLoader[Any], *, auto: bool = False, pacer: Pacer | None = None, **options: Any
) -> Pacer | None:
    """Give one of torch's own loaders what unjam's iterator needs, beside it: the object itself stays as it was.

    `auto`: the number of its workers is chosen as with `num_workers="auto"`; of an iterable it is left alone. `pacer`: of a loader
    before it, which knows already what is best; the answer is the one that is used.
    """
    own = {**DEFAULTS, **options}
    check_options(**own)
    path = None if own["error_log"] is None else os.path.abspath(os.fspath(own["error_log"]))
    recorder = Recorder(path, own["max_errors"], type(loader.dataset).__qualname__, profile=own["profile"])
    in_order = getattr(loader, "in_order", True)
    own["in_order"] = in_order
    if auto and pacer is None:
        pacer = _pacer(loader, first_size(loader.dataset, iterable=False))
    attached.keep(
        loader,
        types.SimpleNamespace(**own, _recorder=recorder, _ship_cache=ShipCache(), _pacer=pacer),
    )
    return pacer
