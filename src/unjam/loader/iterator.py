"""The iterator that a for-loop holds.

Both classes descend from torch's own, because frameworks ask for that, and take from them what is not about processes:
samplers, seeds, the settings of a distributed run, the length warnings. Which process makes a batch, how it crosses and
what happens when something fails is the feed's.

NOTE [ The end of an iterator ]

When Python collects a cycle it calls the finalisers of everything in it in no particular order: an iterator that closed
its workers in `__del__` could find its memory unmapped already. So the feed is never part of the garbage: a
`weakref.finalize` holds it until the iterator is gone, and closes it then. The feed knows nothing of the iterator, nor of
anything of the user's that might: their sampler and their `on_error` are handed to it for each batch and not kept.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import weakref
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from unjam.loader import attached
from unjam.loader.driver.driver import Feed
from unjam.loader.driver.elastic_TMP import ElasticFeed
from unjam.loader.driver.inline import Alone, InlineSurroundings
from unjam.loader.driver.on_error import Court
from unjam.loader.driver.pinning import Pinner
from unjam.loader.driver.settings_TMP import CannotLoad, Options
from unjam.loader.engine.config import Config
from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.start import fork_instead, open_pool
from unjam.loader.pool.worker_reports import Learnt
from unjam.loader.transport.collating import additions, checked, is_default
from unjam.loader.worker.batch_recovery import Mender
from unjam.loader.worker.fetching import Fetcher, make_fetcher
from unjam.loader.worker.sample_recovery import Identity
from unjam.loader.worker.spec import Cargo, WorkerSpec
from unjam.loader.worker.transforms import Transforms
from unjam.system import torch_private as private
from unjam.system.memory_limits import available_memory

# of the memory that is left when an epoch begins, this part may be batches under way
BUDGET_SHARE = 0.25


class InlineIterator(private.InlineIterator):  # type: ignore[misc] # torch's, whatever it is
    """`num_workers=0`."""

    def __init__(self, loader: Any) -> None:
        private.BaseIterator.__init__(self, loader)
        if self._timeout != 0:
            raise AssertionError("timeout needs num_workers > 0")
        if isinstance(self._dataset, (private.IterDataPipe, private.MapDataPipe)):
            private.apply_sharding(self._dataset, self._world_size, self._rank)
        own, options = own_of(loader), _options(loader)
        court = Court(options.policy)
        fetcher = _fetcher_here(self, court, own._ship_cache.learnt)  # noqa: SLF001 - made for this
        own._recorder.begin(None, 0, options.expected)  # noqa: SLF001 - made for this
        pin = (self._pin_memory_device,) if self._pin_memory else None
        self._feed = Alone(fetcher, options, court, own._recorder, pin)  # noqa: SLF001 - made for this
        _profile_here(self, self._feed)
        self._function = _function(loader)
        if options.sample_timeout is not None:
            own._recorder.say("inline", "sample_timeout needs workers: nothing can stop a sample in this process")  # noqa: SLF001 - made for this

    def __next__(self) -> Any:
        # torch's own, without opening a profiler's range that nobody will read
        if self._dataset_kind == private.DatasetKind.Iterable or private.profiler_enabled():
            return super().__next__()
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        return self._feed.next(self._next_index, self._function)


class WorkersIterator(private.WorkersIterator):  # type: ignore[misc] # as above
    """`num_workers` > 0. `begun`: when it was asked for, in nanoseconds of the machine's clock."""

    def __init__(self, loader: Any, begun: int) -> None:
        self._begun = begun
        private.BaseIterator.__init__(self, loader)
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = own_of(loader).in_order
        self._pacer = own_of(loader)._pacer  # noqa: SLF001 - made for this
        if self._pacer is None and self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._worker_init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (private.IterDataPipe, private.MapDataPipe)):
            self._worker_init_fn = functools.partial(
                private.sharding_worker_init_fn, self._worker_init_fn, self._world_size, self._rank
            )
        self._iterable = self._dataset_kind == private.DatasetKind.Iterable
        if self._pacer is not None:
            self._make_room()
        self._open(loader)
        self._reset(loader, first_iter=True)

    def _make_room(self) -> None:
        """`num_workers="auto"`: places for as many as there may be; iterables have as many as were best so far."""
        now, most = self._pacer.setting, self._pacer.limits
        self._num_workers = now.workers if self._iterable else most.workers
        self._prefetch_factor = now.depth if self._iterable else most.depth

    def _open(self, loader: Any) -> None:
        """Make a pool and a feed for it; at first, and again where an error ended the ones before."""
        own = own_of(loader)
        cargo = Cargo(self._dataset, self._collate_fn, self._worker_init_fn, additions())
        specs = [self._spec(number, own) for number in range(self._num_workers)]
        # kept for a second start: see _fall_back
        self._plan = (cargo, specs, loader.multiprocessing_context, own._ship_cache)  # noqa: SLF001 - made for this
        self._budget, self._deaths = own.memory_budget, (own.on_worker_death == "restart", own.max_restarts)
        self._options, self._recorder = _options(loader), own._recorder  # noqa: SLF001 - as above
        if self._pacer is not None and not self._iterable:
            self._options = dataclasses.replace(self._options, seed=int(self._base_seed))
        self._function = _function(loader)
        pool = open_pool(*self._plan)
        pool.made_in = time.monotonic_ns() - self._begun
        self._use(pool)

    def _use(self, pool: ProcessPool) -> None:
        restarts, max_restarts = self._deaths
        config = Config(
            self._num_workers,
            self._prefetch_factor,
            in_order=self._in_order,
            iterable=self._iterable,
            keeps_workers=self._persistent_workers,
            budget=_budget(self._budget),
            restarts=restarts,
            max_restarts=max_restarts,
        )
        court = Court(self._options.policy)
        pinner = Pinner(self._pin_memory_device) if self._pin_memory else None
        self._pool = pool
        parts = (self._options, court, self._recorder, pinner)
        if self._pacer is None or self._iterable:
            self._feed = Feed(pool, config, *parts, self._pacer)
        else:
            self._feed = ElasticFeed(config, self._pacer, parts=(pool, *parts))
        # at the interpreter's end the pools are closed by one function of their own
        weakref.finalize(self, self._feed.close).atexit = False

    def _spec(self, number: int, own: Any) -> WorkerSpec:
        return WorkerSpec(
            worker=number,
            workers=self._num_workers,
            iterable=self._iterable,
            auto_collation=self._auto_collation,
            drop_last=self._drop_last,
            base_seed=int(self._base_seed),
            shared_seed=self._shared_seed,
            threads=own.worker_threads,
            by_value=True,
            policy=policy_of(own),
            profile=own.profile,
        )

    @property
    def _workers(self) -> list[Any]:
        """The workers' processes; frameworks and torch's own tests look at them."""
        return self._pool.processes

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's signature
        if not first_iter:
            self._feed.turn.check_idle()
        private.BaseIterator._reset(self, loader, first_iter)  # noqa: SLF001 - the part that is not about processes
        if self._feed.closed:
            self._begun = time.monotonic_ns()
            self._open(loader)  # an error ended the workers; they are persistent, so the next epoch has new ones
        self._feed.begin(self._next_index, self._shared_seed)

    def __next__(self) -> Any:
        if self._iterable or private.profiler_enabled():
            return super().__next__()  # see InlineIterator
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        try:
            return self._feed.next(self._next_index, self._function)
        except CannotLoad as problem:
            self._fall_back(problem)
            return self._feed.next(self._next_index, self._function)
        except StopIteration:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise

    def _fall_back(self, problem: CannotLoad) -> None:
        """What was sent could not be rebuilt: start again with forked workers, where that is allowed and safe."""
        self._use(fork_instead(*self._plan, problem.error))
        self._sampler_iter: Any = itertools.chain(problem.drawn, self._sampler_iter)
        self._feed.begin(self._next_index, self._shared_seed)

    def _shutdown_workers(self) -> None:
        feed = getattr(self, "_feed", None)  # __init__ may have failed before there was one
        if feed is not None and not feed.closed:
            feed.close()

    def __del__(self) -> None:
        """Not torch's: see NOTE [ The end of an iterator ]."""


def _fetcher_here(iterator: Any, court: Court, learnt: Learnt) -> Fetcher:
    """What makes batches in this process."""
    iterable = iterator._dataset_kind == private.DatasetKind.Iterable  # noqa: SLF001 - one of ours
    around = InlineSurroundings(court.ask, learnt.mention)
    identity = Identity(None, int(iterator._base_seed), iterable, iterator._auto_collation, by_value=False)  # noqa: SLF001
    tolerant = iterator._collate_fn if is_default(iterator._collate_fn) else None  # noqa: SLF001 - as above
    mender = Mender(court.policy, identity, iterator._dataset, around, tolerant=tolerant)  # noqa: SLF001 - as above
    return make_fetcher(
        iterator._dataset,  # noqa: SLF001 - as above
        checked(iterator._collate_fn),  # noqa: SLF001 - as above
        iterable=iterable,
        batched=iterator._auto_collation,  # noqa: SLF001 - as above
        drop_last=iterator._drop_last,  # noqa: SLF001 - as above
        pulse=around,
        mender=mender,
        hurries=True,
    )


def _profile_here(iterator: Any, alone: Alone) -> None:
    """Time the transforms in this process, where a profile is wanted, for as long as the iterator lives."""
    profiler = alone.profiler
    if profiler is not None:
        roots = {"dataset": iterator._dataset, "collate_fn": iterator._collate_fn}  # noqa: SLF001 - one of ours
        alone.transforms = Transforms(roots)
        weakref.finalize(iterator, alone.transforms.remove).atexit = False
        weakref.finalize(iterator, profiler.rest).atexit = False


def own_of(loader: Any) -> Any:
    """Who has unjam's own options: unjam's loader itself, or what was added to one of torch's."""
    return attached.find(loader) or loader


def policy_of(own: Any) -> Policy:
    """`on_error` and `retries`."""
    always = None if callable(own.on_error) else Decision(own.on_error)
    return Policy(always, own.retries)


def _function(loader: Any) -> Any:
    own = own_of(loader)
    return own.on_error if callable(own.on_error) else None


def _options(loader: Any) -> Options:
    own = own_of(loader)
    return Options(
        policy=policy_of(own),
        timeout=loader.timeout,
        sample_timeout=own.sample_timeout,
        warn_after=own.warn_after,
        expected=_expected(loader),
        batched=loader._auto_collation,  # noqa: SLF001 - torch's name for it
    )


def _expected(loader: Any) -> int | None:
    """How many samples an epoch has: what the sampler says, where torch itself makes the batches of it."""
    try:
        if isinstance(loader.dataset, IterableDataset):
            return len(loader.dataset)  # type: ignore[arg-type] # some have a length
        if loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler:
            return len(loader.sampler)
        return None
    except Exception:  # noqa: BLE001 - user code, which torch never asks here: whatever it raises, nothing is known
        return None


def _budget(asked: int | None) -> int | None:
    if asked is not None:
        return asked
    left = available_memory()
    return None if left is None else int(left * BUDGET_SHARE)
