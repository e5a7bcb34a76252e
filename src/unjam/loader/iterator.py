"""The iterator that a for-loop holds.

Both classes inherit from torch's own, because frameworks check for that. They reuse what does not
concern processes: samplers, seeds, the settings of a distributed run, the length warnings. The
driver decides which process makes a batch, how it is sent and what happens when something fails.

NOTE [ The end of an iterator ]

When Python collects a cycle, it calls the finalisers in it in no particular order. An iterator that
closed its workers in `__del__` could find its memory already unmapped. So the driver must never be
part of a cycle: a `weakref.finalize` holds it until the iterator is gone, and then closes it. The
driver has no reference to the iterator, nor to user objects that might have one: it gets the user's
sampler and `on_error` for each batch and does not keep them.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from unjam.loader.checkpoint.resume import Resumption, stateful_sampler
from unjam.loader.device.accelerator import check
from unjam.loader.device.mover import Mover
from unjam.loader.device.pinning import Pinner
from unjam.loader.driver.auto_size import AutoSizer
from unjam.loader.driver.driver import Driver
from unjam.loader.driver.epoch_progress import CannotRebuild
from unjam.loader.driver.index_source import StatefulDraw
from unjam.loader.driver.inline import InlineDriver
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.engine.config import Config
from unjam.loader.engine.elastic_machine import ElasticMachine
from unjam.loader.engine.machine import Machine
from unjam.loader.options import LoaderOptions
from unjam.loader.pool.pool_request import PoolRequest, opener_of
from unjam.loader.pool.protocol import Pool
from unjam.loader.state import LoaderState, own_of
from unjam.loader.transport.collating import additions
from unjam.loader.worker.spec import WorkerInput, WorkerSpec
from unjam.system import torch_private as private
from unjam.system.memory_limits import available_memory

# batches in flight may take this part of the memory that is available when the loader starts
BUDGET_SHARE = 0.25


class _Next:
    """torch's `__next__`, but without its profiler range when no profiler runs."""

    _iterable: bool
    _num_yielded: int
    _elastic = False
    _next_data: Callable[[], Any]

    def __next__(self) -> Any:
        if self._iterable or private.profiler_enabled():
            return super().__next__()  # type: ignore[misc] # torch's
        data = self._next_data()
        self._num_yielded += 1
        return data


class InlineIterator(_Next, private.InlineIterator):  # type: ignore[misc] # torch's class has no type here
    """`num_workers=0`."""

    def __init__(self, loader: Any) -> None:
        options, state = own_of(loader)
        resumption = Resumption(loader, state)
        private.BaseIterator.__init__(self, loader)
        if self._timeout != 0:
            raise AssertionError("timeout needs num_workers > 0")
        if isinstance(self._dataset, (private.IterDataPipe, private.MapDataPipe)):
            private.apply_sharding(self._dataset, self._world_size, self._rank)
        self._base_seed: int = resumption.seed(int(self._base_seed), 0, by_batch=False)
        progress = resumption.start(self, seed=self._base_seed, sampler_iterations=1, keeps_workers=False)
        spec = _spec(self, 0, 0, options, state, inline=True)
        self._driver = InlineDriver(
            WorkerInput(self._dataset, self._collate_fn, None, {}),
            dataclasses.replace(spec, start_at=progress.worker_positions.get(0)),
            _settings(loader, options),
            state.recorder,
            state.payloads.reports,
            (self._pin_memory_device,) if self._pin_memory else None,
            progress,
            _mover(options, state),
        )
        self._iterable = self._dataset_kind == private.DatasetKind.Iterable
        self._on_device = options.on_device
        self._sampler = stateful_sampler(loader)
        _tell_recorder(state, options)
        state.progress = progress
        resumption.finish()
        self._function = options.on_error_function

    def _next_data(self) -> Any:
        return self._driver.next(_draw(self), self._function, self._on_device)


class WorkersIterator(_Next, private.WorkersIterator):  # type: ignore[misc] # as above
    """`num_workers` > 0. `begun`: when it was requested, in monotonic nanoseconds."""

    def __init__(self, loader: Any, begun: int) -> None:
        self._begun = begun
        self._sampler = stateful_sampler(loader)
        resumption = Resumption(loader, own_of(loader)[1])
        private.BaseIterator.__init__(self, loader)
        self._pool_spec = own_of(loader)[0].pool_spec
        self._opener = opener_of(self._pool_spec)
        # workers on this machine; the others are elsewhere
        self._local_workers, self._num_workers = self._pool_spec.count(loader.num_workers)
        depth = loader.prefetch_factor
        self._prefetch_factor: int = self._pool_spec.prefetch_factor if depth is None else depth
        self._in_order = getattr(loader, "in_order", True)
        self._sizer = own_of(loader)[1].sizer
        if self._sizer is None and self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._worker_init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (private.IterDataPipe, private.MapDataPipe)):
            self._worker_init_fn = functools.partial(
                private.sharding_worker_init_fn, self._worker_init_fn, self._world_size, self._rank
            )
        self._iterable = self._dataset_kind == private.DatasetKind.Iterable
        # The number of workers may change within an epoch. With workers here and elsewhere, the faster ones make more batches.
        mixed = 0 < self._local_workers < self._num_workers
        self._elastic = (self._sizer is not None or mixed) and not self._iterable
        if self._sizer is not None:
            self._use_sizer(self._sizer, resumption)
        self._base_seed: int = resumption.seed(int(self._base_seed), self._num_workers, by_batch=self._elastic)
        self._resumption: Resumption | None = resumption
        self._open(loader)
        self._reset(loader, first_iter=True)

    def _use_sizer(self, sizer: AutoSizer, resumption: Resumption) -> None:
        most = self._opener.most_workers(self._pool_spec)
        if most is not None:
            self._local_workers = 0  # all of them run elsewhere
            sizer.use_cluster(most)
        # places for the most workers possible; iterables use the best size so far
        size = sizer.limits if self._elastic else sizer.setting
        self._num_workers, self._prefetch_factor = size.workers, size.depth
        if self._iterable:
            self._num_workers = resumption.workers(size.workers, sizer.limits.workers)
        self._num_workers = int(self._num_workers)  # not an `AutoWorkers`, which a saved state must not contain

    def _open(self, loader: Any) -> None:
        """Make a pool and its driver; again if an error closed the previous ones."""
        options, state = own_of(loader)
        worker_input = WorkerInput(self._dataset, self._collate_fn, self._worker_init_fn, additions())
        specs = [_spec(self, number, self._num_workers, options, state) for number in range(self._num_workers)]
        # kept for a second start: see `_fall_back`
        self._request = PoolRequest(
            self._pool_spec,
            worker_input,
            specs,
            loader.multiprocessing_context,
            state.payloads,
            here=self._local_workers,
            may_move=options.on_worker_death == "restart",
        )
        self._config = Config(
            self._num_workers,
            self._prefetch_factor,
            in_order=self._in_order,
            iterable=self._iterable,
            keeps_workers=self._persistent_workers,
            budget=_budget(options.memory_budget),
            restarts=options.on_worker_death == "restart",
            max_restarts=options.max_restarts,
        )
        self._settings = _settings(loader, options, seed=int(self._base_seed) if self._elastic else None)
        self._recorder, self._function = state.recorder, options.on_error_function
        self._recorder.reports = state.payloads.reports
        self._mover, self._on_device = _mover(options, state), options.on_device
        pool = self._opener.open_pool(self._request)
        pool.made_in = time.monotonic_ns() - self._begun
        self._make_driver(pool)

    def _make_driver(self, pool: Pool) -> None:
        """Make a driver for a pool."""
        machine = Machine(self._config)
        if self._elastic:
            size, depth = self._num_workers, self._prefetch_factor
            if self._sizer is not None:
                size, depth = self._sizer.setting.workers, self._sizer.setting.depth
            machine = ElasticMachine(self._config, size=size, depth=depth)
        pinner = Pinner(self._pin_memory_device) if self._pin_memory else None
        self._pool = pool
        self._driver = Driver(pool, machine, self._settings, self._recorder, self._mover or pinner, self._sizer)
        # at interpreter exit, `pool_registry.close_all` closes the pools
        weakref.finalize(self, self._driver.close).atexit = False

    @property
    def _workers(self) -> list[Any]:
        """The workers' processes; frameworks and torch's own tests read them."""
        processes: list[Any] = self._pool.processes
        return processes

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        if not first_iter:
            self._driver.lock.check_idle()
        options, state = own_of(loader)
        resumption, self._resumption = self._resumption, None
        if resumption is None:
            resumption = Resumption(loader, state)
            resumption.seed(int(self._base_seed), self._num_workers, by_batch=self._elastic)
        private.BaseIterator._reset(self, loader, first_iter)  # noqa: SLF001 - the part that does not concern processes
        progress = resumption.start(
            self, seed=int(self._base_seed), sampler_iterations=1 + first_iter, keeps_workers=self._persistent_workers
        )
        progress.seeded = progress.seeded and (first_iter or progress.position > 0)
        if self._driver.closed:
            self._begun = time.monotonic_ns()
            # after an error closed the workers: with persistent workers, the next epoch needs new
            # ones
            self._open(loader)
        _tell_recorder(state, options)
        self._driver.begin(_draw(self), self._shared_seed, progress)
        state.progress = progress
        resumption.finish()

    def _next_data(self) -> Any:
        try:
            return self._driver.next(_draw(self), self._function, self._on_device)
        except CannotRebuild as problem:
            self._fall_back(problem)
            return self._driver.next(_draw(self), self._function, self._on_device)
        except StopIteration:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise

    def _fall_back(self, problem: CannotRebuild) -> None:
        """A worker could not rebuild the dataset: start again with other workers, or raise the error that says why."""
        self._make_driver(self._opener.open_fallback_pool(self._request, problem.error))
        self._driver.begin(_draw(self), self._shared_seed, problem.progress, problem.drawn)

    def _shutdown_workers(self) -> None:
        driver = getattr(self, "_driver", None)  # __init__ may have failed early
        if driver is not None and not driver.closed:
            driver.close()

    def __del__(self) -> None:
        """Replace torch's; see NOTE [ The end of an iterator ]."""


def _draw(iterator: Any) -> Any:
    """Return what draws the next indices of an iterator."""
    draw, sampler = iterator._next_index, iterator._sampler  # noqa: SLF001 - one of ours
    return draw if sampler is None else StatefulDraw(draw, sampler, iterator._index_sampler)  # noqa: SLF001 - as above


def _tell_recorder(state: LoaderState, options: LoaderOptions) -> None:
    """Tell the recorder what a failed sample needs to be loaded again."""
    state.recorder.epoch = state.epoch
    state.recorder.seed = state.sample_seed if options.rng == "sample" else None


def _mover(options: LoaderOptions, state: LoaderState) -> Mover | None:
    """Return what sends batches to the loader's device; raise if the device is not there."""
    device = options.target_device
    if device is None:
        return None
    check(device)
    return Mover(device, state.recorder.copies)


def _spec(
    iterator: Any, number: int, workers: int, options: LoaderOptions, state: LoaderState, *, inline: bool = False
) -> WorkerSpec:
    """Return the settings of one worker, or of this process if it loads inline."""
    by_sample = options.rng == "sample"
    return WorkerSpec(
        worker=number,
        workers=workers,
        iterable=iterator._dataset_kind == private.DatasetKind.Iterable,  # noqa: SLF001 - one of ours
        auto_collation=iterator._auto_collation,  # noqa: SLF001 - as above
        drop_last=iterator._drop_last,  # noqa: SLF001 - as above
        base_seed=int(iterator._base_seed),  # noqa: SLF001 - as above
        shared_seed=iterator._shared_seed,  # noqa: SLF001 - as above
        threads=options.worker_threads,
        by_value=not inline,
        policy=options.policy,
        profile=options.profile,
        sample_seed=state.sample_seed if by_sample else None,
        epoch=state.epoch,
        reports_generators=not inline and not by_sample and not iterator._elastic,  # noqa: SLF001 - as above
        snapshot_every=options.snapshot_every_n_steps,
        inline=inline,
    )


def _settings(loader: Any, options: LoaderOptions, *, seed: int | None = None) -> DriverSettings:
    return DriverSettings(
        policy=options.policy,
        timeout=loader.timeout,
        sample_timeout=options.sample_timeout,
        warn_after=options.warn_after,
        expected=_expected(loader),
        batched=loader._auto_collation,  # noqa: SLF001 - torch's name for it
        seed=seed,
    )


def _expected(loader: Any) -> int | None:
    """How many samples an epoch has, if known without asking a custom batch sampler."""
    try:
        if isinstance(loader.dataset, IterableDataset):
            return len(loader.dataset)  # type: ignore[arg-type] # some have a length
        if loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler:
            return len(loader.sampler)
        return None
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - user code, which torch does not call here; if it raises, the number is unknown
        return None


def _budget(asked: int | None) -> int | None:
    if asked is not None:
        return asked
    left = available_memory()
    return None if left is None else int(left * BUDGET_SHARE)
