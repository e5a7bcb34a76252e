"""After an exception that a signal handler raised in the middle of a decision.

A signal handler may raise between any two steps of Python. What the engine decided can then be lost before it was written down:
a batch that was to be delivered, sent, drawn. Nothing of the user's is lost by that, because the driver still has every batch that
was drawn and every load that has come; so what should follow from them is found again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.ledger import Where
from unjam.loader.engine.machine import Machine
from unjam.loader.pool.protocol import Work


def resync(
    machine: Machine,
    todo: deque[act.Action],
    work: Mapping[int, Work],
    loads: Collection[int],
    outcome: act.Action | None,
) -> act.Deliver | None:
    """Put what was lost back into `todo`; the answer is a delivery that was decided and forgotten."""
    entries = machine.ledger.entries
    pending = set(todo)
    drawing = {action.batch for action in pending if isinstance(action, act.Draw)}
    for number, record in enumerate(machine.workers):
        record.undelivered = sum(1 for entry in entries.values() if entry.worker == number)
    lost = None
    for batch in sorted(work):
        entry = entries.get(batch)
        if entry is None and batch in loads:
            if outcome is None and act.Deliver(batch) not in pending:
                lost = act.Deliver(batch)  # there can be one at most
        elif entry is None and batch not in drawing:
            todo.extend(machine.handle(ev.Drew(batch)))
        elif entry is not None and batch in loads and entry.where is Where.AT_WORKER:
            todo.extend(machine.handle(ev.Result(entry.worker, batch)))
        elif entry is not None and entry.where is Where.AT_WORKER and work[batch].sent_to is None:
            todo.append(act.Send(entry.worker, batch))  # it may be done twice
    if machine.drawing and not any(isinstance(action, act.Draw) for action in todo) and machine.drawn not in work:
        todo.append(act.Draw(machine.drawn))
    return lost
