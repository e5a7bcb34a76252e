"""From indices to samples to a batch, with a heartbeat before each sample.

Does what torch's own fetchers do, in the same order of calls, so that the results are the same.
`SampleRecovery` handles failed samples; the loops here only keep track of the position.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, Subset
from typing_extensions import override

from unjam.errors import CannotResumeError
from unjam.loader.transport.status_page import POSITION, SINCE, STOP, YIELDED, Stage
from unjam.loader.worker.batch_recovery import BatchRecovery
from unjam.loader.worker.failure_policy import FailurePolicy, FatalSample, RecoveryContext
from unjam.loader.worker.job import SINGLY, BatchJob, Emptied, Interrupted, IterableEnded, RaiseFailure
from unjam.loader.worker.progress import PositionTracker, WorkerPosition, check_repeats, load_dataset, load_iterator
from unjam.loader.worker.sample_random import SampleRandom
from unjam.loader.worker.sample_recovery import SampleRecovery
from unjam.loader.worker.spec import WorkerInput, WorkerSpec
from unjam.system import random_state
from unjam.system.random_state import isolated_random_state

# After ENOUGH_QUICK batches with samples faster than QUICK nanoseconds, we time whole batches.
QUICK, ENOUGH_QUICK = 10_000, 16
# how often in a row a stream may fail that is read again
MOST_FAILURES = 100


class Fetcher(ABC):
    """Makes batches from indices; its subclasses load the samples.

    `collate`, `tolerant`: with and without our checks; see `BatchRecovery`.
    """

    # samples that were read again to reach the stream's position, and the seconds that took
    reread_samples, reread_seconds = 0, 0.0

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        spec: WorkerSpec,
        context: RecoveryContext,
        tolerant: Callable[[Any], Any] | None,
    ) -> None:
        failures = FailurePolicy(spec, dataset, context)
        self.sample_recovery = SampleRecovery(failures)
        self.batch_recovery = BatchRecovery(failures, self.sample_recovery, tolerant=tolerant)
        self._only_raises = failures.only_raises
        self._context = context
        self._collate = collate
        self._batched = spec.auto_collation
        self._seeds = None if spec.sample_seed is None else SampleRandom(spec.sample_seed, spec.epoch)
        self._begin(dataset, spec)

    @abstractmethod
    def _begin(self, dataset: Any, spec: WorkerSpec) -> None:
        """Prepare the dataset: put it at the position where this worker starts."""

    @abstractmethod
    def fetch(self, job: BatchJob) -> Any:
        """Return the batch; raise `IterableEnded`, `Emptied` or `RaiseFailure` if there is none."""

    @abstractmethod
    def position_update(self) -> bytes:
        """Return what has changed since the last call; see `WorkerPosition`."""

    def _seed_batch(self, job: BatchJob) -> None:
        if self._seeds is not None:
            self._seeds.seed_batch(job.number)

    def _batch_of(self, job: BatchJob, data: list[Any]) -> Any:
        if job.failures and not data:
            raise Emptied
        self._seed_batch(job)
        self._context.heartbeat(Stage.COLLATE, job.batch)
        job.stamps.append(time.monotonic_ns())
        try:
            batch = self._collate(data)
        except BaseException as error:  # noqa: BLE001 - user code; the policy decides
            batch = self.batch_recovery.cannot_collate(job, data, error, self._collate)
        job.samples = len(data)
        return batch

    def _batch_of_anything(self, job: BatchJob, data: Any) -> Any:
        """Collate what `__getitems__` returned: usually a list, else a tensor or a generator."""
        if type(data) is list:
            return self._batch_of(job, data)
        batch = self._convert(job, data)
        job.samples = len(job.indices())
        return batch

    def _convert(self, job: BatchJob, data: Any) -> Any:
        """Call collate on one value: a single sample, or a batch that the dataset made."""
        self._seed_batch(job)
        self._context.heartbeat(Stage.COLLATE, job.batch)
        job.stamps.append(time.monotonic_ns())
        job.samples = 1
        try:
            return self._collate(data)
        except BaseException as error:  # noqa: BLE001 - as above
            self.batch_recovery.fail_batch(job, "collate", error)
            raise Emptied from None


class MapFetcher(Fetcher):
    """Batches of a dataset with `__getitem__`."""

    @override
    def _begin(self, dataset: Any, spec: WorkerSpec) -> None:
        if spec.start_at is not None:
            # a dataset may set generators; in the program's own process the order of the epoch comes from them
            with isolated_random_state() if spec.inline else contextlib.nullcontext():
                load_dataset(dataset, spec.start_at)
            random_state.restore(spec.start_at.random)
        self._dataset = dataset if self._seeds is None else _Seeding(dataset, self._seeds)
        if self._seeds is not None:
            self.batch_recovery.load = self._dataset.__getitem__
        self._tracker = PositionTracker(dataset, None, every=spec.snapshot_every, random=spec.reports_generators)
        # Nothing watches inline loading: fast samples need no heartbeat each.
        self._times_batches = spec.inline
        self._quick = 0  # count of fast batches in a row
        self._at_once = gives_all_at_once(dataset)
        # torch's Dataset has a __getitem__ that only raises
        self._indexable = getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__

    @override
    def fetch(self, job: BatchJob) -> Any:
        self._context.heartbeat(Stage.GETITEM, job.batch)
        if not self._batched:
            data: list[Any] = []
            self._load_samples(job, enumerate([job.index]), data)
            if not data:
                raise Emptied
            return self._convert(job, data[0])
        singly = job.decisions.get(-1) == SINGLY and self._indexable
        if self._at_once and not singly:
            return self._batch_of_anything(job, self._all_at_once(job))
        data = []
        if not self._times_batches:
            self._load_samples(job, enumerate(job.index), data)
            return self._batch_of(job, data)
        left = self._load_untimed(job, data) if self._quick >= ENOUGH_QUICK else enumerate(job.index)
        if left is not None:
            self._load_samples(job, left, data)
        batch = self._batch_of(job, data)
        stamps = job.stamps
        took = (stamps[-1] - stamps[0]) / max(1, job.samples)
        # A slow sample has no timestamp of its own here: time each sample again for a while.
        self._quick = self._quick + 1 if took < QUICK else -ENOUGH_QUICK
        return batch

    def _load_untimed(self, job: BatchJob, data: list[Any]) -> Any:
        """Load samples without timing each; after a failure return an iterator over the rest."""
        dataset, places = self._dataset, enumerate(job.index)
        job.stamps.append(time.monotonic_ns())
        position, one = -1, None
        try:
            for position, one in places:  # noqa: B007 - used when it fails
                data.append(dataset[one])
        except BaseException as error:  # noqa: BLE001 - user code; the policy decides
            self.sample_recovery.recover_sample(job, position, one, error, data, self._load)
            return places
        return None

    def _load_samples(self, job: BatchJob, places: Any, data: list[Any]) -> None:
        dataset, words, clock = self._dataset, self._context.words, time.monotonic_ns
        stamps, decisions = job.stamps, job.decisions
        position, one = -1, None
        while True:
            try:
                for position, one in places:
                    words[POSITION] = position
                    now = clock()
                    words[SINCE] = now
                    stamps.append(now)
                    if words[STOP]:
                        raise Interrupted
                    if decisions and position in decisions:
                        raise FatalSample(decisions[position])
                    data.append(dataset[one])
            except Interrupted:
                raise
            except BaseException as error:  # noqa: BLE001 - user code; the policy decides
                failed_at = clock()
                self.sample_recovery.recover_sample(job, position, one, error, data, self._load)
                if stamps:
                    stamps[-1] += clock() - failed_at  # recovery time does not count as the sample's time
            else:
                return

    @override
    def position_update(self) -> bytes:
        return self._tracker.update()

    def _load(self, index: Any) -> Any:
        return self._dataset[index]

    def _all_at_once(self, job: BatchJob) -> Any:
        job.stamps.append(time.monotonic_ns())
        try:
            data: Any = self._dataset.__getitems__(job.index)
        except BaseException as error:  # noqa: BLE001 - as above
            # If we only raise, do not run user code a second time.
            if not self._indexable or self._only_raises:
                self.batch_recovery.cannot_load(job, error)
                raise Emptied from None
            # Load the samples one by one to find the one that fails; the policy handles it.
            job.stamps.clear()
            data = []
            try:
                self._load_samples(job, enumerate(job.index), data)
            except RaiseFailure:
                self.batch_recovery.raise_for_sample(job, error)
            self.batch_recovery.handle_joint_failure(job, error)
        return data


class _Seeding:
    """A dataset before whose every sample the generators are seeded."""

    def __init__(self, dataset: Any, seeds: SampleRandom) -> None:
        self._dataset, self._seeds = dataset, seeds

    def __getitem__(self, index: Any) -> Any:
        self._seeds.seed_sample(index)
        return self._dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        self._seeds.seed_sample(tuple(indices))  # the dataset loads them together
        return self._dataset.__getitems__(indices)


def gives_all_at_once(dataset: Any) -> bool:
    """Return whether the dataset can load a whole batch itself.

    An unmodified torch `Subset` only forwards, so we look at the dataset inside it.
    """
    kind = type(dataset)
    if getattr(kind, "__getitems__", None) is Subset.__getitems__ and kind.__getitem__ is Subset.__getitem__:
        return gives_all_at_once(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


class IterableFetcher(Fetcher):
    """Batches of a dataset with `__iter__`."""

    @override
    def _begin(self, dataset: Any, spec: WorkerSpec) -> None:
        self._worker = spec.worker
        position = spec.start_at
        if position is not None:
            load_dataset(dataset, position)
            random_state.restore(position.start)
        self._iterator: Iterator[Any] = iter(dataset)
        self._drop_last = spec.drop_last
        self._ended = position is not None and position.ended  # with its last batch, which was delivered
        self._just_failed = False
        self._yielded = 0
        self._last: Any = None  # the last sample, until its fingerprint is taken
        if position is not None:
            self._yielded = position.yielded
            if not position.ended:
                self._skip(load_iterator(self._iterator, position), position)
            random_state.restore(position.random)
        self._tracker = PositionTracker(
            dataset, self._iterator, every=spec.snapshot_every, random=spec.reports_generators
        )

    @override
    def position_update(self) -> bytes:
        last, self._last = self._last, None
        return self._tracker.update(self._yielded, last, ended=self._ended)

    def _seed_batch(self, job: BatchJob) -> None:
        del job
        if self._seeds is not None:
            self._seeds.seed_stream(self._worker, -1 - self._yielded)

    def _skip(self, count: int, position: WorkerPosition) -> None:
        """Read samples again, up to where the stream was."""
        words, begun, sample, failed = self._context.words, time.monotonic(), None, 0
        first = position.yielded - count
        while self.reread_samples < count:
            words[SINCE] = time.monotonic_ns()
            if words[STOP]:
                raise Interrupted
            if self._seeds is not None:
                self._seeds.seed_stream(self._worker, first + self.reread_samples)
            try:
                sample = next(self._iterator)
                self.reread_samples += 1
                failed = 0
            except StopIteration:
                raise CannotResumeError(
                    f"the stream is shorter than before: it ended after {first + self.reread_samples} of {position.yielded} samples"
                ) from None
            except Exception as error:  # it failed before as well and did not count
                failed += 1
                if failed >= MOST_FAILURES:
                    raise CannotResumeError(
                        f"the stream failed {failed} times in a row when it was read again"
                    ) from error
        self.reread_seconds = time.monotonic() - begun
        check_repeats(sample, position)

    @override
    def fetch(self, job: BatchJob) -> Any:
        if self._ended:
            raise IterableEnded(self._just_failed)
        self._context.heartbeat(Stage.GETITEM, job.batch)
        if self._batched:
            return self._batch_of(job, self._several(job, job.index))
        data = self._several(job, [None])
        if not data:
            raise Emptied
        return self._convert(job, data[0])

    def _several(self, job: BatchJob, places: Any) -> list[Any]:
        words, stamps = self._context.words, job.stamps
        data: list[Any] = []
        for position, _ in enumerate(places):
            words[POSITION] = position
            words[YIELDED] = self._yielded + len(data)
            now = time.monotonic_ns()
            words[SINCE] = now
            stamps.append(now)
            if words[STOP]:
                raise Interrupted
            if self._seeds is not None:
                self._seeds.seed_stream(self._worker, self._yielded + len(data))
            try:
                data.append(next(self._iterator))
                self._just_failed = False
            except StopIteration:
                self._ended = True
                break
            except BaseException as error:  # noqa: BLE001 - user code; the policy decides
                count = len(data)
                self._ended = self.sample_recovery.recover_stream(
                    job, self._yielded + count, error, data, self._iterator
                )
                self._just_failed = len(data) == count  # nothing took its place
                if self._ended:
                    break
        self._yielded += len(data)
        if data:
            self._last = data[-1]
        if not data and (self._ended or not job.failures):
            raise IterableEnded(self._just_failed)
        if self._ended and self._drop_last and self._batched:
            raise IterableEnded(self._just_failed)
        return data


def make_fetcher(
    worker_input: WorkerInput,
    spec: WorkerSpec,
    context: RecoveryContext,
    *,
    collate: Callable[[Any], Any],
    tolerant: Callable[[Any], Any] | None,
) -> Fetcher:
    """Make the fetcher for this kind of dataset."""
    kind = IterableFetcher if spec.iterable else MapFetcher
    return kind(worker_input.dataset, collate, spec=spec, context=context, tolerant=tolerant)
