"""Which sample is to blame for a worker's end.

NOTE [ Which sample is to blame ]

The sample that a worker was on when it ended is suspect. If the next worker ends on it too, it is judged: the policy
decides, and it is not tried for ever. But somebody outside may be killing workers at random, and then two ends on one
sample are chance. So a suspect that passes on a second try counts as acquitted, which proves that deaths here come from
outside too; with acquittals on record, judgement takes one or two deaths more. A sample that was silent for too long is
judged at once; a worker that somebody suspended accuses nobody.

A worker that the system killed for memory accuses first of all the number of workers: while there are others, it is not
replaced and they share its work.
"""

from __future__ import annotations

from dataclasses import dataclass

from unjam.loader.engine.actions import Judge, Reason
from unjam.loader.engine.events import Cause, Death
from unjam.loader.engine.ledger import Entry

# suspects that passed on a second try, from which on chance is the better explanation of two deaths on one sample
MANY_ACQUITTALS = 4


@dataclass(slots=True)
class Blame:
    """The evidence so far. `convict_after`: deaths on one sample that are enough when nothing speaks for chance."""

    convict_after: int
    acquittals: int = 0

    def passed(self, entry: Entry) -> None:
        """A batch was made: whatever was suspect in it and not judged is acquitted."""
        self.acquittals += len(entry.deaths.keys() - entry.judged)

    def accuse(self, death: Death, entry: Entry | None) -> list[Judge]:
        """Take a death into account; `entry` is the batch it happened on. At most one judgement comes of it."""
        if death.cause is Cause.SUSPENDED or not death.prepared:
            return []
        if entry is None or death.batch is None:
            # it ended on no sample of ours: somebody outside did it
            self.acquittals += 1
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
        return [Judge(death.worker, death.batch, death.position, reason, count)]

    def _enough(self) -> int:
        if self.acquittals == 0:
            return self.convict_after
        return self.convict_after + (1 if self.acquittals < MANY_ACQUITTALS else 2)
