"""The state machine of one loader.

NOTE [ Order, and who gets which batch ]

Batches are numbered as the sampler gives them. With `in_order`, batch after batch goes round the workers that are
still active, and the consumer gets them by number; without it, a batch goes to the next worker with room and the
consumer gets whatever arrived first. This is torch's rule to the letter, because which worker makes a batch decides
the random numbers in it.

How many may be under way is `depth` per worker, as torch's `prefetch_factor`; a budget in bytes can lower that, never
below one, and never changes who gets which batch.

A dead worker's place is taken by a replacement with the same number, which is sent what the dead one owed, oldest
first. An iterable cannot be taken up in the middle, so there a death ends the epoch, unless the worker had nothing left
to give. Which sample is to blame, and when it is judged, is NOTE [ Which sample is to blame ]'s.

Anything that arrives for a batch nobody waits for (a second answer, an answer from an earlier epoch) is ignored here;
the driver gives its memory back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Action, Reason
from unjam.loader.engine.blame import Blame
from unjam.loader.engine.config import Config
from unjam.loader.engine.events import Cause
from unjam.loader.engine.ledger import Entry, Ledger, Where, WorkerRecord


@dataclass(slots=True)
class Machine:
    """See NOTE [ Order, and who gets which batch ]."""

    config: Config
    workers: list[WorkerRecord] = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    drawn: int = 0
    due: int = 0
    owed_draws: int = 0
    drawing: bool = False
    sampler_ended: bool = False
    wanting: bool = False
    over: bool = False
    closed: bool = False
    blame: Blame = field(init=False)
    restarts: int = 0
    retired: int = 0
    largest: int = 0
    turn: int = 0
    # workers whose dataset or `worker_init_fn` raised
    unready: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.workers = [WorkerRecord() for _ in range(self.config.workers)]
        self.blame = Blame(self.config.convict_after)

    def handle(self, event: ev.Event) -> list[Action]:
        """Take one event; return what to do about it, in order."""
        if self.closed:
            return []
        return _HANDLERS[type(event)](self, event)

    # -- an epoch's course ------------------------------------------------------------------------------------------

    def _wanted(self, _: ev.Wanted) -> list[Action]:
        self.wanting = True
        return self._advance()

    def _begin(self, _: ev.Began) -> list[Action]:
        todo: list[Action] = [act.Drop(batch) for batch in sorted(self.ledger.entries)]
        self.ledger.entries.clear()
        self.unready.clear()
        self.due = self.drawn
        self.turn = self.restarts = 0
        self.sampler_ended = self.over = self.wanting = self.drawing = False
        for number, worker in enumerate(self.workers):
            worker.undelivered = worker.answers = 0
            if worker.retired or not self._wants(number):
                continue
            worker.active = True
            if not worker.alive:
                worker.alive = True
                worker.dismissed = False
                todo.append(act.Start(number))
        self.owed_draws = self._most_in_flight()
        return todo + self._advance()

    def _wants(self, number: int) -> bool:  # noqa: ARG002 - an elastic machine asks which
        """Whether a worker takes part in this epoch."""
        return True

    def _awaits_worker(self) -> bool:
        """Whether nobody is there to make a batch, and somebody will be."""
        return False

    def _sampler_ended(self, _: ev.SamplerEnded) -> list[Action]:
        self.drawing = False
        self.sampler_ended = True
        return self._advance()

    def _drew(self, event: ev.Drew) -> list[Action]:
        batch = event.batch
        self.drawing = False
        self.drawn = batch + 1
        worker = self._next_worker()
        if worker is None:
            return self._advance()
        self.ledger.entries[batch] = Entry(worker)
        self.workers[worker].undelivered += 1
        return [act.Send(worker, batch), *self._advance()]

    def _next_worker(self) -> int | None:
        """The worker whose turn it is, or None when every iterable has ended."""
        count = len(self.workers)
        active = [n for n in range(count) if self.workers[n].active]
        if not active:
            return None
        share = self._most_in_flight() // len(active)
        for _ in range(count):
            number = self.turn
            self.turn = (self.turn + 1) % count
            worker = self.workers[number]
            if worker.active and (self.config.in_order or worker.undelivered < share):
                return number
        return min(active, key=lambda n: self.workers[n].undelivered)

    def _result(self, event: ev.Result) -> list[Action]:
        self.largest = max(self.largest, event.nbytes)
        if self.ledger.owes(event.worker, event.batch):
            self.blame.passed(self.ledger.entries[event.batch])
            self.workers[event.worker].suspended = 0
        return self._arrived(event)

    def _arrived(self, event: ev.Result | ev.Failure) -> list[Action]:
        worker, batch = event.worker, event.batch
        if not self.ledger.owes(worker, batch):
            return []
        self.workers[worker].answers += 1
        # taken out and put back: among the arrived, the dict's order is the order of arrival
        entry = self.ledger.entries.pop(batch)
        entry.where = Where.ARRIVED
        self.ledger.entries[batch] = entry
        return self._advance()

    def _exhausted(self, event: ev.Exhausted) -> list[Action]:
        worker, batch = event.worker, event.batch
        record = self.workers[worker]
        if not record.active or not self.ledger.owes(worker, batch):
            return []
        record.active = False
        todo: list[Action] = []
        for lost in self.ledger.held_by(worker):
            del self.ledger.entries[lost]
            record.undelivered -= 1
            todo.append(act.Drop(lost))
        if not self.config.keeps_workers:
            record.dismissed = True
            todo.append(act.Stop(worker, Reason.EXHAUSTED))
        # torch draws one index for each worker that ends, not one for each batch lost with it
        self.owed_draws += 1
        return todo + self._advance()

    def _advance(self) -> list[Action]:
        """Deliver what is due if somebody wants it, ask the sampler for what may be under way, or end the epoch."""
        if self.over:
            wanted, self.wanting = self.wanting, False
            return [act.End()] if wanted else []
        ready = self._deliverable() if self.wanting else None
        if ready is not None:
            return self._deliver(ready)
        if self.unready and self.wanting:
            worker = self.ledger.next_from(self.unready, in_order=self.config.in_order)
            if worker is not None:
                return self._give_up(Reason.UNREADY, worker)
        draw = self._draw()
        if draw:
            return draw
        if self.wanting and not self.drawing and not self.ledger.entries and not self._awaits_worker():
            self.over = True
            self.wanting = False
            return [act.End()]
        return []

    def _deliverable(self) -> int | None:
        entries = self.ledger.entries
        if self.config.in_order:
            first = min(entries, default=None)
            if first is not None and entries[first].where is Where.ARRIVED:
                return first
            return None
        return next((batch for batch, entry in entries.items() if entry.where is Where.ARRIVED), None)

    def _deliver(self, batch: int) -> list[Action]:
        entry = self.ledger.entries.pop(batch)
        self.workers[entry.worker].undelivered -= 1
        self.wanting = False
        self.due = max(self.due, batch + 1)
        self.owed_draws += 1
        # the next indices are drawn before the consumer gets its batch, as in torch
        return [*self._draw(), act.Deliver(batch)]

    def _draw(self) -> list[Action]:
        if self.drawing or self.sampler_ended:
            return []
        allowed = self.owed_draws > 0 and len(self.ledger.entries) < self._room()
        self.owed_draws -= 1 if allowed else 0
        if not allowed or not any(worker.active for worker in self.workers):
            return []
        self.drawing = True
        return [act.Draw(self.drawn)]

    def _room(self) -> int:
        """How many batches may be under way, given what one of them weighs."""
        most = self._most_in_flight()
        if self.config.budget is None or self.largest == 0:
            return most
        return max(1, min(most, self.config.budget // self.largest))

    def _most_in_flight(self) -> int:
        return self.config.most_in_flight - self.retired * self.config.depth

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def _ready(self, event: ev.Ready) -> list[Action]:
        record = self.workers[event.worker]
        record.alive, record.was_ready, record.stillborn = True, True, 0
        self.unready.discard(event.worker)
        return []

    def _goodbye(self, event: ev.Goodbye) -> list[Action]:
        self.workers[event.worker].dismissed = True
        return []

    def _unready(self, event: ev.Unready) -> list[Action]:
        # raised in the place of its first batch, so that what comes before does not depend on time
        self.unready.add(event.worker)
        return self._advance()

    def _died(self, event: ev.Death) -> list[Action]:
        worker = event.worker
        record = self.workers[worker]
        if not record.alive:
            return []
        record.alive = False
        owed = self.ledger.held_by(worker)
        if record.dismissed and not owed:
            return []
        if not owed and (self.over or self.sampler_ended):
            return []  # nothing is left for it to do in this epoch
        if not self.config.restarts and event.cause is not Cause.SILENT:
            return self._give_up(Reason.DIED, worker, owed[0] if owed else None)
        # an iterable can only be begun anew
        if self.config.iterable and record.active and (record.answers or event.batch is not None):
            return self._give_up(Reason.CANNOT_REPLAY, worker, owed[0] if owed else None)
        record.stillborn = 0 if event.prepared else record.stillborn + 1
        if record.stillborn >= (self.config.unborn_later if record.was_ready else self.config.unborn_at_first):
            return self._give_up(Reason.UNBORN, worker)
        self.restarts += 1
        if self.restarts > self.config.max_restarts:
            return self._give_up(Reason.TOO_MANY_DEATHS, worker, owed[0] if owed else None)
        entry = self.ledger.entries.get(event.batch) if event.batch in owed else None
        judge = self.blame.accuse(event, entry)
        if event.cause is Cause.MEMORY and any(r.active and r.alive for r in self.workers if r is not record):
            return self._shrink(worker, owed)
        record.alive = True
        record.dismissed = False
        judged = {action.batch for action in judge}
        again = [act.Send(worker, batch) for batch in owed if batch not in judged]
        return [act.Start(worker), *judge, *again]

    def _shrink(self, worker: int, owed: list[int]) -> list[Action]:
        """Divide a worker's batches among the others."""
        record = self.workers[worker]
        record.retired, record.active = True, False
        self.retired += 1
        others = [n for n, other in enumerate(self.workers) if other.active and other.alive]
        todo: list[Action] = [act.Shrink(worker, len(others))]
        for batch in owed:
            heir = min(others, key=lambda n: self.workers[n].undelivered)
            self.ledger.entries[batch].worker = heir
            self.workers[heir].undelivered += 1
            todo.append(act.Send(heir, batch))
        # what has arrived and is not delivered keeps its maker's number
        record.undelivered -= len(owed)
        return todo

    def _lost(self, event: ev.Lost) -> list[Action]:
        self.workers[event.worker].alive = False
        return []

    def _reprieved(self, event: ev.Reprieved) -> list[Action]:
        entry = self.ledger.entries.get(event.batch)
        if entry is None or entry.where is not Where.AT_WORKER:
            return []
        return [act.Send(entry.worker, event.batch)]

    def _silent(self, event: ev.Silence) -> list[Action]:
        owes = self.ledger.owes(event.worker, event.batch)
        return [act.Warn(event.worker, event.batch)] if owes else []

    def _overdue(self, event: ev.Overdue) -> list[Action]:
        # its death arrives as an event of its own, and the sample is judged there
        owes = self.ledger.owes(event.worker, event.batch)
        return [act.Stop(event.worker, Reason.SILENT)] if owes else []

    def _suspended(self, event: ev.Suspended) -> list[Action]:
        record = self.workers[event.worker]
        if not record.alive:
            return []
        record.suspended += 1
        if record.suspended <= self.config.continue_most:
            return [act.Continue(event.worker)]
        record.suspended = 0
        return [act.Stop(event.worker, Reason.SUSPENDED)]

    def _forgotten(self, event: ev.Forgotten) -> list[Action]:
        # its replacement is sent again what it owes
        owes = self.workers[event.worker].alive and self.ledger.held_by(event.worker)
        return [act.Stop(event.worker, Reason.FORGOTTEN)] if owes else []

    def _timed_out(self, _: ev.TimedOut) -> list[Action]:
        # not the end: the consumer may ask again, and the batch may still come
        if not self.wanting:
            return []
        self.wanting = False
        return [act.GiveUp(Reason.TIMED_OUT)]

    def _give_up(self, reason: Reason, worker: int | None = None, batch: int | None = None) -> list[Action]:
        self.over = self.sampler_ended = True
        self.wanting = False
        drops = [act.Drop(lost) for lost in sorted(self.ledger.entries)]
        self.ledger.entries.clear()
        for record in self.workers:
            record.undelivered = 0
        return [*drops, act.GiveUp(reason, worker, batch)]

    def _close(self, _: ev.Closed) -> list[Action]:
        self.closed = self.over = True
        todo: list[Action] = [act.Drop(batch) for batch in sorted(self.ledger.entries)]
        self.ledger.entries.clear()
        return todo + [act.Stop(n, Reason.CLOSED) for n, record in enumerate(self.workers) if record.alive]

    # -- for tests --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        entries = self.ledger.entries
        assert len(entries) + self.drawing <= self.config.most_in_flight, "more in flight than allowed"
        assert all(batch < self.drawn for batch in entries), "a batch that was never drawn is under way"
        assert self.owed_draws >= 0, "more draws than owed"
        for number, record in enumerate(self.workers):
            counted = sum(1 for entry in entries.values() if entry.worker == number)
            assert self.closed or record.undelivered == counted, f"worker {number}: {record.undelivered} != {counted}"
        assert not (self.over and entries), "the epoch is over and batches are under way"
        assert not (self.drawing and self.sampler_ended), "asking a sampler that has ended"


_HANDLERS: dict[type[ev.Event], Callable[[Machine, Any], list[Action]]] = {
    ev.Began: Machine._begin,
    ev.Wanted: Machine._wanted,
    ev.Drew: Machine._drew,
    ev.SamplerEnded: Machine._sampler_ended,
    ev.Ready: Machine._ready,
    ev.Unready: Machine._unready,
    ev.Result: Machine._result,
    ev.Failure: Machine._arrived,
    ev.Exhausted: Machine._exhausted,
    ev.Silence: Machine._silent,
    ev.Overdue: Machine._overdue,
    ev.Suspended: Machine._suspended,
    ev.Forgotten: Machine._forgotten,
    ev.Goodbye: Machine._goodbye,
    ev.Death: Machine._died,
    ev.Lost: Machine._lost,
    ev.Reprieved: Machine._reprieved,
    ev.TimedOut: Machine._timed_out,
    ev.Closed: Machine._close,
}
