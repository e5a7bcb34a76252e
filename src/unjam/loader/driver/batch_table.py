"""Every batch between the sampler and the consumer: its request and, once it arrived, its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.events import Reported
from unjam.loader.engine.ledger import InFlight
from unjam.loader.engine.machine import Machine
from unjam.loader.pool.batch_result import BatchResult
from unjam.loader.pool.protocol import PoolEvent
from unjam.loader.worker.messages import BatchRequest


class BatchTable:
    """The only owner of results that are not opened yet. `arrivals`: the events that the pool has received."""

    def __init__(self, arrivals: deque[PoolEvent]) -> None:
        self.arrivals = arrivals
        self.requests: dict[int, BatchRequest] = {}
        self.results: dict[int, BatchResult] = {}

    def keep(self, batch: int, result: BatchResult) -> bool:
        """Store the result of a batch; refuse one of an earlier epoch, or a second one."""
        if batch not in self.requests or self.results.get(batch, result) is not result:
            result.refuse()
            return False
        self.results[batch] = result
        return True

    def owed(self, entries: Mapping[int, InFlight]) -> list[tuple[int, BatchRequest]]:
        """Return (worker, request) of the batches that have not arrived, oldest first."""
        requests, results = self.requests, self.results
        return [(e.worker, requests[n]) for n, e in sorted(entries.items()) if n in requests and n not in results]

    def remove(self, batch: int) -> BatchRequest | None:
        """Forget a batch whose result was opened or refused."""
        self.results.pop(batch, None)
        return self.requests.pop(batch, None)

    def drop(self, batch: int) -> None:
        """Forget a batch that will not be delivered, and give its memory back."""
        result = self.results.get(batch)
        if result is not None:
            result.refuse()
        self.remove(batch)

    def close(self) -> None:
        """Give back the memory of everything that was not opened."""
        arrived = [event.result for event in self.arrivals if isinstance(event, Reported) and event.result is not None]
        for result in [*self.results.values(), *arrived]:
            result.refuse()
        self.results.clear()
        self.arrivals.clear()
        self.requests.clear()


def restore(
    machine: Machine,
    todo: deque[act.Action],
    table: BatchTable,
    outcome: act.Action | None,
    decide: Callable[[ev.Event], object],
) -> act.Deliver | None:
    """Put lost decisions back into `todo`; return a delivery that was decided and lost.

    A signal handler may raise between any two bytecodes. Then a decision of the engine (to deliver, send or draw a
    batch) may be lost before it was stored. But the table still has the request of every batch that was drawn and
    every result that arrived, and the lost decisions follow from them.
    """
    entries, requests, results = machine.ledger.entries, table.requests, table.results
    pending = set(todo)
    drawing = {action.batch for action in pending if isinstance(action, act.Draw)}
    for number, record in enumerate(machine.workers):
        record.undelivered = sum(1 for entry in entries.values() if entry.worker == number)
    lost = None
    for batch in sorted(requests):
        entry = entries.get(batch)
        if entry is None and batch in results:
            if outcome is None and act.Deliver(batch) not in pending:
                lost = act.Deliver(batch)  # at most one
        elif entry is None and batch not in drawing:
            decide(ev.Drew(batch))
        elif entry is not None and batch in results and not entry.arrived:
            decide(ev.Result(entry.worker, batch))
        elif entry is not None and not entry.arrived and requests[batch].sent_to is None:
            todo.append(act.Send(entry.worker, batch))  # sending twice is harmless
    if (
        machine.drawing
        and not any(isinstance(action, act.Draw) for action in todo)
        and machine.next_batch not in requests
    ):
        todo.append(act.Draw(machine.next_batch))
    return lost
