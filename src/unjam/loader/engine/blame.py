"""Decides which sample is to blame for a worker's death.

NOTE [ Which sample is to blame ]

The sample that a worker was loading when it died is a suspect. If the next worker dies on it too, we
blame it: the policy decides what to do, so it is not retried for ever. But something outside the
program may kill workers at random, and then two deaths on one sample are a coincidence. A suspect that
succeeds on a second try proves that such deaths happen. From then on, one or two more deaths are needed
to blame a sample. A sample that took too long is blamed at once. The death of a worker that something
suspended, or whose machine is gone, blames no sample.

If the system killed a worker for memory, there are probably too many workers. If others are left, we
do not replace it, and they share its work.
"""

from __future__ import annotations

from dataclasses import dataclass

from unjam.loader.engine.actions import AskPolicy, Reason
from unjam.loader.engine.events import Cause, Death
from unjam.loader.engine.ledger import InFlight

# this many deaths blame a sample, unless workers are killed at random
BLAME_AFTER = 2
# after this many suspects that succeeded later, two more deaths are needed, not one
MANY_PASSED = 4


@dataclass(slots=True)
class Blame:
    """The evidence so far."""

    false_suspects: int = 0

    def passed(self, entry: InFlight) -> None:
        """Record that a batch was made: its suspects that the policy was not asked about have succeeded."""
        self.false_suspects += len(entry.deaths.keys() - entry.asked_about)

    def record_death(self, death: Death, entry: InFlight | None) -> list[AskPolicy]:
        """Record a death on batch `entry`; return at most one question to the policy."""
        if death.cause in (Cause.STOPPED, Cause.MACHINE) or not death.prepared:
            return []
        if entry is None or death.batch is None:
            # it was on no known batch, so something outside the program killed it
            self.false_suspects += 1
            return []
        deaths = entry.deaths
        count = deaths[death.position] = deaths.get(death.position, 0) + 1
        if death.cause is Cause.OVERDUE:
            reason = Reason.OVERDUE
        elif count < self._enough() and death.position not in entry.asked_about:
            return []
        else:
            reason = Reason.KILLED_FOR_MEMORY if death.cause is Cause.MEMORY else Reason.DIED_REPEATEDLY
        entry.asked_about.add(death.position)
        return [AskPolicy(death.worker, death.batch, death.position, reason, count)]

    def _enough(self) -> int:
        if self.false_suspects == 0:
            return BLAME_AFTER
        return BLAME_AFTER + (1 if self.false_suspects < MANY_PASSED else 2)
