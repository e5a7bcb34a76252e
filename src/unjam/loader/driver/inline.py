"""No workers: a batch is made in this process when it is wanted. Nothing is under way, so there is nothing to decide."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from unjam.errors import SampleError, TooManyErrorsError
from unjam.loader.driver.consumer_lock import Turn
from unjam.loader.driver.index_source import Drawer
from unjam.loader.driver.on_error import Court
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings_TMP import Options
from unjam.loader.driver.settling_TMP import settle, settle_end
from unjam.loader.engine.policy import Decision
from unjam.loader.pool.protocol import Facts, Work
from unjam.loader.worker.fetching import Fetcher, NoPulse
from unjam.loader.worker.job import Emptied, Failed, IterableEnded, Job, Surrender
from unjam.loader.worker.transforms import Transforms
from unjam.system.torch_private import pin_memory


class InlineSurroundings(NoPulse):
    """What a mender needs where there is no worker: the user's function is asked directly."""

    def __init__(self, decide: Callable[[int, Failed], Decision], mention: Callable[[str], None]) -> None:
        super().__init__()
        self._decide = decide
        self._mention = mention

    def mention(self, text: str) -> None:
        """See `Surroundings`."""
        self._mention(text)

    def ask(self, job: Job, failed: Failed) -> Decision:
        """See `Surroundings`."""
        return self._decide(job.batch, failed)

    def start_over(self) -> None:
        """Nothing is kept."""


class Alone:
    """Makes batches itself. `pin`: the device whose pinned memory they go to, if the user wants that."""

    def __init__(
        self, fetcher: Fetcher, options: Options, court: Court, recorder: Recorder, pin: tuple[str | None] | None
    ) -> None:
        self._fetcher = fetcher
        self._court = court
        self._recorder = recorder
        self._pin = pin
        # what was drawn and not made yet: a Ctrl-C in between must not lose it
        self._held: Work | None = None
        self._drawer = Drawer(options, spares=court.policy.may_replace)
        self.turn = Turn()
        self._number = 0
        self.closed = False
        self.profiler = recorder.profiler
        self.transforms: Transforms | None = None

    def next(self, draw: Callable[[], Any], function: Callable[[SampleError], Any] | None = None) -> Any:
        """The next batch, or what was raised in its place; StopIteration at the end of the epoch."""
        self.turn.take(lambda: self.closed)
        self._court.function = function
        try:
            return self._next(draw)
        finally:
            self._court.function = None
            self.turn.give_back()

    def close(self) -> None:
        """There will be no more."""
        self.closed = True
        self._held = None

    def _next(self, draw: Callable[[], Any]) -> Any:
        begun = time.monotonic_ns()
        while not self.closed:
            if self._held is None:
                try:
                    index = draw()
                    self._held = self._drawer.work(self._number, self._number, 0, index)
                    self._number += 1
                except StopIteration:
                    break
            work = self._held
            data, empty, raises = None, False, False
            try:
                data = self._make(work)
            except IterableEnded as end:
                self.close()
                failures = self._job.failures
                problem = settle_end(self._court, self._recorder, work.batch, failures, 0, cut_short=end.cut_short)
                if problem is not None:
                    raise problem from None
                break
            except (Surrender, Emptied) as outcome:
                raises = isinstance(outcome, Surrender)
                empty = not raises
            self._held, job = None, self._job
            if job.failures or empty or raises:
                problem = settle(self._court, self._recorder, work.batch, job.failures, empty=empty, raises=raises)
                if isinstance(problem, TooManyErrorsError):
                    self.close()
                if problem is not None:
                    raise problem
                if empty:
                    continue
            # nothing is packed: the stamps end as those of a worker do
            now = time.monotonic_ns()
            job.stamps += (now, now)
            facts = Facts(job.samples, 0, job.times())
            if self.transforms is not None:
                facts.profile = self.transforms.take()
            if self._pin is not None:
                data = pin_memory(data, *self._pin)
                now = time.monotonic_ns()
            self._recorder.delivered(work, facts, now - begun)
            return data
        problem = self._recorder.ended()
        raise problem or StopIteration

    def _make(self, work: Work) -> Any:
        self._job = Job(work.batch, work.number, work.index, work.spares, batched=work.batched)
        return self._fetcher.fetch(self._job)
