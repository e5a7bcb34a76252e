"""Decides which sample is to blame for a worker's death.

NOTE [ Which sample is to blame ]

The sample that a worker was on when it died is a suspect. If the next worker dies on it too, we
blame it: the policy decides, so it is not tried for ever. But something outside may kill workers at
random, and then two deaths on one sample are chance. A suspect that passes on a second try proves
that deaths here also come from outside. After such passes, blame takes one or two more deaths. A
sample that took too long is blamed at once. A worker that something suspended, or whose machine
is gone, blames no sample.

If the system killed a worker for memory, there are probably too many workers. While there are
others, we do not replace it and they share its work.
"""

from __future__ import annotations

from dataclasses import dataclass

from unjam.loader.engine.actions import AskPolicy, Reason
from unjam.loader.engine.events import Cause, Death
from unjam.loader.engine.ledger import InFlight

# with this many suspects that passed later, blame takes two more deaths, not one
MANY_PASSED = 4


@dataclass(slots=True)
class Blame:
    """The evidence so far. `blame_after`: how many deaths blame a sample if chance is unlikely."""

    blame_after: int
    passed_later: int = 0

    def passed(self, entry: InFlight) -> None:
        """A batch was made: its suspects that the policy was not asked about have passed."""
        self.passed_later += len(entry.deaths.keys() - entry.judged)

    def record_death(self, death: Death, entry: InFlight | None) -> list[AskPolicy]:
        """Record a death on batch `entry`; return at most one question to the policy."""
        if death.cause in (Cause.SUSPENDED, Cause.MACHINE) or not death.prepared:
            return []
        if entry is None or death.batch is None:
            # it was on no batch that we know, so something outside killed it
            self.passed_later += 1
            return []
        deaths = entry.deaths
        count = deaths[death.position] = deaths.get(death.position, 0) + 1
        if death.cause is Cause.SILENT:
            reason = Reason.SILENT
        elif count < self._enough() and death.position not in entry.judged:
            return []
        else:
            reason = Reason.KILLED_FOR_MEMORY if death.cause is Cause.MEMORY else Reason.DIED_REPEATEDLY
        entry.judged.add(death.position)
        return [AskPolicy(death.worker, death.batch, death.position, reason, count)]

    def _enough(self) -> int:
        if self.passed_later == 0:
            return self.blame_after
        return self.blame_after + (1 if self.passed_later < MANY_PASSED else 2)
