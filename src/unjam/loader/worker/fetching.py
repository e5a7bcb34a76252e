"""From indices to samples to a batch, with a sign of life before each sample.

What torch's own fetchers do, in the same order of calls, so that the results are the same. What happens when a sample
fails is the mender's; the loops here only know where they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import Dataset, Subset

from unjam.loader.transport.status_page import POSITION, SINCE, STOP, YIELDED, Stage
from unjam.loader.worker.batch_recovery import Mender
from unjam.loader.worker.job import SINGLY, Emptied, Interrupted, IterableEnded, Job, Surrender
from unjam.loader.worker.sample_recovery import Convicted

# nanoseconds: samples quicker than this are timed by the batch, after so many batches of them in a row
QUICK, ENOUGH_QUICK = 10_000, 16


class Pulse(Protocol):
    """Where signs of life go. Before each sample two of its `words` are written and one is read, without a call."""

    words: Any

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Say what is about to be done."""


class NoPulse:
    """Nobody looks: for loading in the training process itself."""

    def __init__(self) -> None:
        self.words: Any = [0] * 8

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Nothing."""


class Fetcher(Protocol):
    """Makes batches from indices."""

    def fetch(self, job: Job) -> Any:
        """The batch; raises `IterableEnded`, `Emptied` or `Surrender` where there is none to give."""


class _Collating:
    """The second half of every fetch."""

    def __init__(self, collate: Callable[[Any], Any], mender: Mender, pulse: Pulse) -> None:
        self._collate = collate
        self._mender = mender
        self._pulse = pulse

    def _batch_of(self, job: Job, data: list[Any]) -> Any:
        if job.failures and not data:
            raise Emptied
        self._pulse.beat(Stage.COLLATE, job.batch)
        job.stamps.append(time.monotonic_ns())
        try:
            batch = self._collate(data)
        except BaseException as error:  # noqa: BLE001 - user code; the policy decides
            batch = self._mender.cannot_collate(job, data, error, self._collate)
        job.samples = len(data)
        return batch

    def _batch_of_anything(self, job: Job, data: Any) -> Any:
        """The dataset gave all samples at once: nearly always a list, but a tensor or a generator if it likes."""
        if type(data) is list:
            return self._batch_of(job, data)
        batch = self._convert(job, data)
        job.samples = len(job.indices())
        return batch

    def _convert(self, job: Job, data: Any) -> Any:
        """What takes the place of collating where the dataset makes whole batches itself."""
        self._pulse.beat(Stage.COLLATE, job.batch)
        job.stamps.append(time.monotonic_ns())
        job.samples = 1
        try:
            return self._collate(data)
        except BaseException as error:  # noqa: BLE001 - as above
            self._mender.whole(job, "collate", error)
            raise Emptied from None


class MapFetcher(_Collating):
    """Batches of a dataset with `__getitem__`."""

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], *, batched: bool, pulse: Pulse, mender: Mender, hurries: bool
    ) -> None:
        super().__init__(collate, mender, pulse)
        self._dataset = dataset
        self._batched = batched
        self._hurries = hurries
        self._quick = 0  # batches of quick samples, in a row
        self._at_once = gives_all_at_once(dataset)
        # torch's own class has a method that only raises
        self._indexable = getattr(type(dataset), "__getitem__", Dataset.__getitem__) is not Dataset.__getitem__

    def fetch(self, job: Job) -> Any:
        """See `Fetcher`."""
        self._pulse.beat(Stage.GETITEM, job.batch)
        if not self._batched:
            data: list[Any] = []
            self._each(job, [job.index], data)
            if not data:
                raise Emptied
            return self._convert(job, data[0])
        singly = job.verdicts.get(-1) == SINGLY and self._indexable
        if self._at_once and not singly:
            return self._batch_of_anything(job, self._all_at_once(job))
        data = []
        if not self._hurries:
            self._each(job, job.index, data)
            return self._batch_of(job, data)
        left = self._quickly(job, data) if self._quick >= ENOUGH_QUICK else enumerate(job.index)
        if left is not None:
            self._each_of(job, left, data)
        batch = self._batch_of(job, data)
        stamps = job.stamps
        took = (stamps[-1] - stamps[0]) / max(1, job.samples)
        # a slow one among them would not be known by its index: look at each again for a while
        self._quick = self._quick + 1 if took < QUICK else -ENOUGH_QUICK
        return batch

    def _quickly(self, job: Job, data: list[Any]) -> Any:
        """Load samples without a look at the clock before each; what is left to load after one that failed, or None."""
        dataset, places = self._dataset, enumerate(job.index)
        job.stamps.append(time.monotonic_ns())
        position, one = -1, None
        try:
            for position, one in places:  # noqa: B007 - used when it fails
                data.append(dataset[one])
        except BaseException as error:  # noqa: BLE001 - user code; the policy decides
            self._mender.sample(job, position, one, error, data, self._load)
            return places
        return None

    def _each(self, job: Job, indices: Any, data: list[Any]) -> None:
        self._each_of(job, enumerate(indices), data)

    def _each_of(self, job: Job, places: Any, data: list[Any]) -> None:
        dataset, words, clock = self._dataset, self._pulse.words, time.monotonic_ns
        stamps, verdicts = job.stamps, job.verdicts
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
                    if verdicts and position in verdicts:
                        raise Convicted(verdicts[position])
                    data.append(dataset[one])
            except Interrupted:
                raise
            except BaseException as error:  # noqa: BLE001 - user code; the policy decides
                failed_at = clock()
                self._mender.sample(job, position, one, error, data, self._load)
                if stamps:
                    stamps[-1] += clock() - failed_at  # what mending took is not the sample's time
            else:
                return

    def _load(self, index: Any) -> Any:
        return self._dataset[index]

    def _all_at_once(self, job: Job) -> Any:
        job.stamps.append(time.monotonic_ns())
        try:
            data: Any = self._dataset.__getitems__(job.index)
        except BaseException as error:  # noqa: BLE001 - as above
            # what is to be raised is raised: nothing of the user's is run a second time for that
            if not self._indexable or self._mender.only_raises:
                self._mender.cannot_load(job, error)
                raise Emptied from None
            # one of them is to blame: one by one, the same policies find it
            job.stamps.clear()
            data = []
            try:
                self._each(job, job.index, data)
            except Surrender:
                self._mender.name_one(job, error)
            self._mender.not_alone(job, error)
        return data


def gives_all_at_once(dataset: Any) -> bool:
    """Whether a dataset has a way of its own to load a whole batch; torch's Subset only asks for one sample after the other."""
    kind = type(dataset)
    if getattr(kind, "__getitems__", None) is Subset.__getitems__ and kind.__getitem__ is Subset.__getitem__:
        return gives_all_at_once(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


class IterableFetcher(_Collating):
    """Batches of a dataset with `__iter__`."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        batched: bool,
        drop_last: bool,
        pulse: Pulse,
        mender: Mender,
    ) -> None:
        super().__init__(collate, mender, pulse)
        self._iterator: Iterator[Any] = iter(dataset)
        self._batched = batched
        self._drop_last = drop_last
        self._ended = False
        self._just_failed = False
        self._yielded = 0

    def fetch(self, job: Job) -> Any:
        """See `Fetcher`."""
        if self._ended:
            raise IterableEnded(self._just_failed)
        self._pulse.beat(Stage.GETITEM, job.batch)
        if self._batched:
            return self._batch_of(job, self._several(job, job.index))
        data = self._several(job, [None])
        if not data:
            raise Emptied
        return self._convert(job, data[0])

    def _several(self, job: Job, places: Any) -> list[Any]:
        words, stamps = self._pulse.words, job.stamps
        data: list[Any] = []
        for position, _ in enumerate(places):
            words[POSITION] = position
            words[YIELDED] = self._yielded + len(data)
            now = time.monotonic_ns()
            words[SINCE] = now
            stamps.append(now)
            if words[STOP]:
                raise Interrupted
            try:
                data.append(next(self._iterator))
                self._just_failed = False
            except StopIteration:
                self._ended = True
                break
            except BaseException as error:  # noqa: BLE001 - user code; the policy decides
                self._just_failed = True
                self._ended = self._mender.stream(job, self._yielded + len(data), error, data, self._iterator)
                if self._ended:
                    break
        self._yielded += len(data)
        if not data and (self._ended or not job.failures):
            raise IterableEnded(self._just_failed)
        if self._ended and self._drop_last and self._batched:
            raise IterableEnded(self._just_failed)
        return data


def make_fetcher(
    dataset: Any,
    collate: Callable[[Any], Any],
    *,
    iterable: bool,
    batched: bool,
    drop_last: bool,
    pulse: Pulse,
    mender: Mender,
    hurries: bool = False,
) -> Fetcher:
    """The fetcher for this kind of dataset. `hurries`: samples that are quick need no sign of life before each."""
    if iterable:
        return IterableFetcher(dataset, collate, batched=batched, drop_last=drop_last, pulse=pulse, mender=mender)
    return MapFetcher(dataset, collate, batched=batched, pulse=pulse, mender=mender, hurries=hurries)
