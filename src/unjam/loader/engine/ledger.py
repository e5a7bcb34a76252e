"""Which worker has which batch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class InFlight:
    """One batch between sampler and consumer."""

    worker: int
    arrived: bool = False
    # by position in the batch: how many workers died on that sample
    deaths: dict[int, int] = field(default_factory=dict)
    # the positions that the policy has been asked about
    asked_about: set[int] = field(default_factory=set)


@dataclass(slots=True)
class WorkerRecord:
    """What the engine knows about one worker.

    `active` is torch's word for "still takes batches in this epoch": an iterable worker stops being
    active when its iterable ends, but its process may live on. `retired`: it was killed for memory
    and never gets work again.
    """

    active: bool = True
    alive: bool = False
    dismissed: bool = False
    retired: bool = False
    undelivered: int = 0
    # consecutive deaths before the first sample
    failed_starts: int = 0
    was_ready: bool = False
    # consecutive suspensions
    suspended: int = 0


@dataclass(slots=True)
class Ledger:
    """Every batch between sampler and consumer, by number. Numbers are never reused."""

    entries: dict[int, InFlight] = field(default_factory=dict)

    def held_by(self, worker: int) -> list[int]:
        """The batches that `worker` still owes, oldest first."""
        return sorted(b for b, e in self.entries.items() if e.worker == worker and not e.arrived)

    def next_from(self, workers: set[int], *, in_order: bool) -> int | None:
        """Which of these workers has the batch that is delivered next, if one of them has it."""
        for batch in sorted(self.entries)[: 1 if in_order else None]:
            entry = self.entries[batch]
            if not entry.arrived and entry.worker in workers:
                return entry.worker
        return None

    def owes(self, worker: int, batch: int) -> bool:
        """Whether `worker` still owes `batch`; if not, its result is stale."""
        entry = self.entries.get(batch)
        return entry is not None and entry.worker == worker and not entry.arrived
