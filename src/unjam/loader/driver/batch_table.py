"""Every batch between the sampler and the consumer: its work and, once it arrived, its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from unjam.loader.engine.ledger import BatchEntry
from unjam.loader.pool.protocol import Arrival, BatchResult, Work


class BatchTable:
    """The only owner of results that are not opened yet. `inbox`: what the pool has received."""

    def __init__(self, inbox: deque[Arrival]) -> None:
        self.inbox = inbox
        self.work: dict[int, Work] = {}
        self.results: dict[int, BatchResult] = {}

    def keep(self, batch: int, result: BatchResult) -> bool:
        """Store the result of a batch; refuse one of an earlier epoch, or a second one."""
        if batch not in self.work or self.results.get(batch, result) is not result:
            result.refuse()
            return False
        self.results[batch] = result
        return True

    def owed(self, entries: Mapping[int, BatchEntry]) -> list[tuple[int, Work]]:
        """Return (worker, work) of the batches that have not arrived, oldest first."""
        work, results = self.work, self.results
        return [(e.worker, work[n]) for n, e in sorted(entries.items()) if n in work and n not in results]

    def remove(self, batch: int) -> Work | None:
        """Forget a batch whose result was opened or refused."""
        self.results.pop(batch, None)
        return self.work.pop(batch, None)

    def drop(self, batch: int) -> None:
        """Forget a batch that will not be delivered, and give its memory back."""
        result = self.results.get(batch)
        if result is not None:
            result.refuse()
        self.remove(batch)

    def close(self) -> None:
        """Give back the memory of everything that was not opened."""
        for result in [*self.results.values(), *(arrival.result for arrival in self.inbox)]:
            if result is not None:
                result.refuse()
        self.results.clear()
        self.inbox.clear()
        self.work.clear()
