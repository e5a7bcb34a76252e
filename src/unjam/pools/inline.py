"""No workers: the batch is made in the training process when it is wanted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from unjam.engine import events as ev
from unjam.engine.actions import Reason
from unjam.engine.policy import Decision
from unjam.pools.loads import Missing
from unjam.pools.protocol import Arrival, Ending, Facts, Work
from unjam.transport.page import Beat
from unjam.worker.fetching import Fetcher, NoPulse
from unjam.worker.job import Emptied, Failed, IterableEnded, Job, Surrender


class InlineSurroundings(NoPulse):
    """What a mender needs where there is no worker: the user's function is asked directly."""

    def __init__(self, decide: Callable[[int, Failed], Decision]) -> None:
        super().__init__()
        self._decide = decide

    def ask(self, job: Job, failed: Failed) -> Decision:
        """See `Surroundings`."""
        return self._decide(job.batch, failed)

    def start_over(self) -> None:
        """Nothing is kept."""


class InlinePool:
    """One worker that is no process. What user code raises passes through untouched."""

    def __init__(self, make_fetcher: Callable[[], Fetcher]) -> None:
        self._fetcher = make_fetcher()
        self._work: deque[Work] = deque()
        self.arrivals: deque[Arrival] = deque()

    def start(self, worker: int) -> None:
        """See `Pool`."""

    def send(self, worker: int, work: Work) -> None:
        """See `Pool`."""
        del worker
        self._work.append(work)

    def resume(self, shared_seed: int | None) -> None:
        """See `Pool`."""

    def stop(self, worker: int, reason: Reason) -> None:
        """See `Pool`."""

    def wait(self, seconds: float) -> None:
        """Make the next batch, for as long as user code takes."""
        del seconds
        if self._work:
            # taken off the list once it is made: a Ctrl-C in between must not lose it
            self.arrivals.append(self._make(self._work[0]))
            if self._work:  # user code may have closed the loader meanwhile
                self._work.popleft()

    def _make(self, work: Work) -> Arrival:
        job = Job(work.batch, work.number, work.index, work.spares, batched=work.batched)
        try:
            data = self._fetcher.fetch(job)
        except IterableEnded as end:
            return Arrival(ev.Exhausted(0, work.batch, cut_short=end.cut_short), Missing(job.failures, raises=False))
        except (Surrender, Emptied) as outcome:
            missing = Missing(job.failures, raises=isinstance(outcome, Surrender))
            return Arrival(ev.Failure(0, work.batch) if missing.raises else ev.Result(0, work.batch), missing)
        # nothing is packed: the stamps end as those of a worker do
        job.stamps += [time.monotonic_ns()] * 2
        return Arrival(ev.Result(0, work.batch), Plain(data, Facts(job.samples, 0, job.times(), listed=job.failures)))

    def answer(self, worker: int, decision: str) -> None:
        """See `Pool`."""

    def let_go_on(self, worker: int) -> None:
        """See `Pool`."""

    def ending(self, worker: int) -> Ending | None:
        """See `Pool`."""

    def beat(self, worker: int) -> Beat | None:
        """See `Pool`."""

    def pid(self, worker: int) -> int | None:
        """See `Pool`."""

    def suspended(self, worker: int) -> bool:
        """See `Pool`."""
        del worker
        return False

    def stack(self, worker: int) -> str:
        """See `Pool`."""
        del worker
        return ""

    def memory(self) -> tuple[int, int]:
        """See `Pool`."""
        return 0, 0

    def held(self) -> int:
        """See `Pool`."""
        return 0

    def close(self) -> None:
        """See `Pool`."""
        self._work.clear()


class Plain:
    """A batch that never left the process."""

    raises = empty = loading = False

    def __init__(self, data: Any, facts: Facts) -> None:
        self._data = data
        self.facts = facts

    def open(self, *, copy: bool) -> Any:
        """The batch."""
        del copy
        return self._data

    def refuse(self) -> None:
        """Nothing is held."""
