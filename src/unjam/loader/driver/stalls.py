"""Checks whether workers that owe batches are overdue, suspended or silent, while the parent waits.

We never decide on one check, nor on the clock alone. A worker may have been suspended together with
its parent (Ctrl-Z, a paused container), and then every heartbeat looks old. So we count the time from
the first check that saw the worker in its current state, and a gap between two checks restarts the
count.
"""

from __future__ import annotations

from unjam.deadlines import STALL_CHECK, SUSPENDED_GAP
from unjam.loader.engine import events as ev
from unjam.loader.pool.protocol import Pool
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.loader.worker.messages import BatchRequest

# Stages that count towards a sample's time. Pauses and waiting for `on_error` do not.
_OWN_TIME = (Stage.GETITEM, Stage.COLLATE, Stage.PICKLE)
# A worker that owes a batch may be idle for this many seconds: on a busy machine it may see its
# task late.
MAX_IDLE = 10.0
# the shortest time between two checks, even if sample_timeout is shorter
MIN_INTERVAL = 0.05


WorkerTrouble = ev.Suspended | ev.Forgotten | ev.Overdue


class StallDetector:
    """Finds workers that make no progress.

    `sample_timeout`: seconds for one sample, or None. `warn_after`: seconds without a batch before
    a warning, or None for no warnings.
    """

    def __init__(self, pool: Pool, sample_timeout: float | None, warn_after: float | None) -> None:
        self._pool = pool
        self._sample_timeout = sample_timeout
        self._warn_after = warn_after
        # each worker's last heartbeat, and when it was first seen
        self._seen: dict[int, tuple[Heartbeat, float]] = {}
        self._last = 0.0
        self._next_warning = warn_after or 0.0
        # seconds between two checks
        self.interval = STALL_CHECK.seconds
        if sample_timeout is not None:
            self.interval = min(self.interval, max(MIN_INTERVAL, sample_timeout / 4))
        if warn_after is not None:
            self.interval = min(self.interval, max(MIN_INTERVAL, warn_after / 2))

    def due(self, now: float) -> bool:
        """Return whether it is time for a check."""
        return now - self._last >= self.interval

    def check(self, now: float, owed: dict[int, list[BatchRequest]]) -> list[WorkerTrouble]:
        """Return the events about workers that owe batches; `owed`: their batches, oldest first."""
        gap, self._last = now - self._last, now
        events: list[WorkerTrouble] = []
        before, self._seen = self._seen, {}
        for worker, works in owed.items():
            heartbeat = self._pool.heartbeat(worker)
            if heartbeat is None:
                continue
            known, first = before.get(worker, (None, now))
            same = known == heartbeat
            paused = gap > self.interval + SUSPENDED_GAP.seconds
            self._seen[worker] = (heartbeat, first if same and not paused else now)
            if same and self._pool.suspended(worker):
                events.append(ev.Suspended(worker))
                self._seen[worker] = (heartbeat, now)
            elif same and not paused and heartbeat.stage is Stage.IDLE and now - first > MAX_IDLE and works[0].sent_to:
                # its answer was lost: a signal handler raised while we read the channel
                events.append(ev.Forgotten(worker))
                self._seen[worker] = (heartbeat, now)
            elif same and not paused and self._over_time(now, heartbeat, first, works):
                events.append(ev.Overdue(worker, heartbeat.batch))
        return events

    def silent(self, owed: dict[int, list[BatchRequest]], waited: float) -> int | None:
        """Return the worker to warn about if the consumer has waited long enough, in seconds."""
        if self._warn_after is None or waited < self._next_warning or not owed:
            return None
        self._next_warning *= 2
        return min(owed, key=lambda number: owed[number][0].batch)

    def batch_delivered(self, waited: float) -> None:
        """Record that the consumer got a batch; if the wait was short, reset the time of the next warning."""
        if self._warn_after is not None and waited < self._warn_after:
            self._next_warning = self._warn_after

    def _over_time(self, now: float, heartbeat: Heartbeat, first: float, works: list[BatchRequest]) -> bool:
        if self._sample_timeout is None or heartbeat.stage not in _OWN_TIME:
            return False
        work = next((work for work in works if work.batch == heartbeat.batch), None)
        if work is None:
            return False
        allowed = self._sample_timeout
        if heartbeat.stage is not Stage.GETITEM or heartbeat.position < 0:
            # it processes the whole batch at once
            allowed *= max(1, len(work.indices))
        return now - max(heartbeat.since / 1e9, first - self.interval) > allowed
