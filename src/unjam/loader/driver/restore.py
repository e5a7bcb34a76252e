"""Recovery after a signal handler raised in the middle of a decision.

A signal handler may raise between any two bytecodes. Then a decision of the engine may be lost
before it was stored: to deliver, send or draw a batch. But the driver still has the work of every
drawn batch and every result that arrived, so we derive the lost decisions from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from unjam.loader.driver.batch_table import BatchTable
from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.ledger import Where
from unjam.loader.engine.machine import Machine


def restore(
    machine: Machine,
    todo: deque[act.Action],
    table: BatchTable,
    outcome: act.Action | None,
    decide: Callable[[ev.Event], object],
) -> act.Deliver | None:
    """Put lost decisions back into `todo`; return a delivery that was decided and lost."""
    entries, work, results = machine.ledger.entries, table.work, table.results
    pending = set(todo)
    drawing = {action.batch for action in pending if isinstance(action, act.Draw)}
    for number, record in enumerate(machine.workers):
        record.undelivered = sum(1 for entry in entries.values() if entry.worker == number)
    lost = None
    for batch in sorted(work):
        entry = entries.get(batch)
        if entry is None and batch in results:
            if outcome is None and act.Deliver(batch) not in pending:
                lost = act.Deliver(batch)  # at most one
        elif entry is None and batch not in drawing:
            decide(ev.Drew(batch))
        elif entry is not None and batch in results and entry.where is Where.AT_WORKER:
            decide(ev.Result(entry.worker, batch))
        elif entry is not None and entry.where is Where.AT_WORKER and work[batch].sent_to is None:
            todo.append(act.Send(entry.worker, batch))  # sending twice is harmless
    if machine.drawing and not any(isinstance(action, act.Draw) for action in todo) and machine.drawn not in work:
        todo.append(act.Draw(machine.drawn))
    return lost
