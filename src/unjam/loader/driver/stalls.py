"""Looks at workers that owe something while their parent waits: who is over time, who was suspended, whom to explain.

A worker is never judged on one look, nor on the clock alone. It may have been suspended together with its parent
(Ctrl-Z, a container that is paused), and then everything looks old; so time counts from the first look that saw the
worker where it is, and a gap between two looks begins the count anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from unjam.loader.engine import events as ev
from unjam.loader.engine.deadlines import LOOK_AGAIN, NOTICE_PAUSE
from unjam.loader.pool.protocol import Pool, Work
from unjam.loader.transport.status_page import Beat, Stage

# a stage that is the sample's own time; pauses and questions are not
_OWN_TIME = (Stage.GETITEM, Stage.COLLATE, Stage.PICKLE)
# seconds for which a worker that owes something may wait for work; on a crowded machine it may be late to see it
FORGOTTEN = 10.0
# the shortest time between two looks, however short a sample may be
SHORTEST_LOOK = 0.05


@dataclass(slots=True)
class Watch:
    """`sample_timeout`: seconds for one sample, or None. `warn_after`: seconds without a batch, or None for silence."""

    pool: Pool
    sample_timeout: float | None
    warn_after: float | None
    # each worker's last sign of life, and when it was first seen
    _seen: dict[int, tuple[Beat, float]]
    _last: float
    _next_warning: float
    # seconds between two looks
    interval: float

    @classmethod
    def over(cls, pool: Pool, sample_timeout: float | None, warn_after: float | None) -> Watch:
        """A watch that has seen nothing yet."""
        interval = LOOK_AGAIN.seconds
        if sample_timeout is not None:
            interval = min(interval, max(SHORTEST_LOOK, sample_timeout / 4))
        if warn_after is not None:
            interval = min(interval, max(SHORTEST_LOOK, warn_after / 2))
        return cls(pool, sample_timeout, warn_after, {}, 0.0, warn_after or 0.0, interval)

    def due(self, now: float) -> bool:
        """Whether it is time for a look."""
        return now - self._last >= self.interval

    def look(self, now: float, owed: dict[int, list[Work]], waited: float) -> list[ev.Event]:
        """What is to be said about the workers that owe batches, oldest first; `waited`: how long the consumer has."""
        gap, self._last = now - self._last, now
        events: list[ev.Event] = []
        before, self._seen = self._seen, {}
        for worker, works in owed.items():
            beat = self.pool.beat(worker)
            if beat is None:
                continue
            known, first = before.get(worker, (None, now))
            same = known == beat
            paused = gap > self.interval + NOTICE_PAUSE.seconds
            self._seen[worker] = (beat, first if same and not paused else now)
            if same and self.pool.suspended(worker):
                events.append(ev.Suspended(worker))
                self._seen[worker] = (beat, now)
            elif same and not paused and beat.stage is Stage.IDLE and now - first > FORGOTTEN and works[0].sent_to:
                # it has answered, and the answer was lost: a signal handler raised while it was taken from the channel
                events.append(ev.Forgotten(worker))
                self._seen[worker] = (beat, now)
            elif same and not paused and self._over_time(now, beat, first, works):
                events.append(ev.Overdue(worker, beat.batch))
        if self.warn_after is not None and waited >= self._next_warning and owed:
            self._next_warning *= 2
            worker = min(owed, key=lambda number: owed[number][0].batch)
            events.append(ev.Silence(worker, owed[worker][0].batch))
        return events

    def rest(self, waited: float) -> None:
        """The consumer got a batch; if it did not wait long for it, the next warning is a first one again."""
        if self.warn_after is not None and waited < self.warn_after:
            self._next_warning = self.warn_after

    def _over_time(self, now: float, beat: Beat, first: float, works: list[Work]) -> bool:
        if self.sample_timeout is None or beat.stage not in _OWN_TIME:
            return False
        work = next((work for work in works if work.batch == beat.batch), None)
        if work is None:
            return False
        allowed = self.sample_timeout
        if beat.stage is not Stage.GETITEM or beat.position < 0:
            # the whole batch at once
            allowed *= max(1, len(work.indices))
        return now - max(beat.since / 1e9, first - self.interval) > allowed
