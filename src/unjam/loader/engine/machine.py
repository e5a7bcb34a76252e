"""The state machine of one loader.

NOTE [ Order, and who gets which batch ]

Batches are numbered in the sampler's order. With `in_order`, batches go to the active workers in
turn, and the consumer gets them by number. Without it, a batch goes to the next worker that has
room, and the consumer gets the first that arrived. This is exactly torch's rule, because the worker
that makes a batch determines its random numbers.

At most `depth` batches per worker are in flight, as with torch's `prefetch_factor`. A budget in
bytes can lower that, but not below one, and never changes which worker gets which batch.

A dead worker is replaced by one with the same number, which gets the batches that the dead one
owed, oldest first. A worker of an iterable resumes at the dead one's position after its last batch that
arrived. A second death on the same batch ends the epoch, because no sample of a stream can be skipped.
NOTE [ Which sample is to blame ] says which sample is blamed, and when.

We ignore results that no worker owes (a second answer, an answer of an earlier epoch); the driver
gives their memory back.
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
from unjam.loader.engine.ledger import InFlight, Ledger, WorkerRecord

# We give up after this many consecutive deaths before the first sample: of a worker that was never
# ready; of one that was ready before, or whose machine is gone.
FAILED_STARTS_AT_FIRST, FAILED_STARTS_LATER = 3, 10
# after this many consecutive suspensions, a worker is replaced
CONTINUE_MOST = 3


@dataclass(slots=True)
class Machine:
    """The state of one loader; see NOTE [ Order, and who gets which batch ]."""

    config: Config
    workers: list[WorkerRecord] = field(init=False)
    ledger: Ledger = field(default_factory=Ledger)
    next_batch: int = 0
    owed_draws: int = 0
    drawing: bool = False
    sampler_ended: bool = False
    wanting: bool = False
    over: bool = False
    closed: bool = False
    blame: Blame = field(default_factory=Blame)
    restarts: int = 0
    retired: int = 0
    largest: int = 0
    turn: int = 0
    # workers whose dataset or `worker_init_fn` raised
    unready: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.workers = [WorkerRecord() for _ in range(self.config.workers)]

    def handle(self, event: ev.Event) -> list[Action]:
        """Handle one event; return what to do about it, in order."""
        if self.closed:
            return []
        return _HANDLERS[type(event)](self, event)

    # -- the course of an epoch --------------------------------------------------------------------

    def _wanted(self, _: ev.Wanted) -> list[Action]:
        self.wanting = True
        return self._advance()

    def _begin(self, event: ev.Began) -> list[Action]:
        todo: list[Action] = [act.Drop(batch) for batch in sorted(self.ledger.entries)]
        self.ledger.entries.clear()
        self.unready.clear()
        self.turn, self.restarts = event.turn % len(self.workers), 0
        self.sampler_ended = self.over = self.wanting = self.drawing = False
        for number, worker in enumerate(self.workers):
            worker.undelivered = 0
            if number in event.ended:
                worker.active = False
            if worker.retired or number in event.ended or not self._wants(number):
                continue
            worker.active = True
            if not worker.alive:
                worker.alive = True
                worker.dismissed = False
                todo.append(act.Start(number))
        self.owed_draws = self._most_in_flight()
        return todo + self._advance()

    def _wants(self, number: int) -> bool:  # noqa: ARG002 - used by the elastic machine
        """Whether a worker takes part in this epoch."""
        return True

    def _awaits_worker(self) -> bool:
        """Whether there is no active worker now, but there will be one."""
        return False

    def _sampler_ended(self, _: ev.SamplerEnded) -> list[Action]:
        self.drawing = False
        self.sampler_ended = True
        return self._advance()

    def _drew(self, event: ev.Drew) -> list[Action]:
        batch = event.batch
        self.drawing = False
        self.next_batch = batch + 1
        worker = self._next_worker()
        if worker is None:
            return self._advance()
        self.ledger.entries[batch] = InFlight(worker)
        self.workers[worker].undelivered += 1
        return [act.Send(worker, batch), *self._advance()]

    def _next_worker(self) -> int | None:
        """The worker that gets the next batch, or None if no worker is active."""
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
        # reinsert the entry: among arrived batches, the dict's order is the order of arrival
        entry = self.ledger.entries.pop(batch)
        entry.arrived = True
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
            todo.append(act.Drop(lost, exhausted=True))
        if not self.config.keeps_workers:
            record.dismissed = True
            todo.append(act.Stop(worker, Reason.EXHAUSTED))
        # like torch: one draw per worker that ends, not one per batch lost with it
        self.owed_draws += 1
        return todo + self._advance()

    def _advance(self) -> list[Action]:
        """Deliver a batch if one is wanted and ready, or draw another one, or end the epoch."""
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
            if first is not None and entries[first].arrived:
                return first
            return None
        return next((batch for batch, entry in entries.items() if entry.arrived), None)

    def _deliver(self, batch: int) -> list[Action]:
        entry = self.ledger.entries.pop(batch)
        self.workers[entry.worker].undelivered -= 1
        self.wanting = False
        self.owed_draws += 1
        # draw the next indices before the consumer gets its batch, as torch does
        return [*self._draw(), act.Deliver(batch)]

    def _draw(self) -> list[Action]:
        if self.drawing or self.sampler_ended:
            return []
        allowed = self.owed_draws > 0 and len(self.ledger.entries) < self._most_within_budget()
        self.owed_draws -= 1 if allowed else 0
        if not allowed or not any(worker.active for worker in self.workers):
            return []
        self.drawing = True
        return [act.Draw(self.next_batch)]

    def _most_within_budget(self) -> int:
        """How many batches may be in flight, given the size of the largest so far."""
        most = self._most_in_flight()
        if self.config.budget is None or self.largest == 0:
            return most
        return max(1, min(most, self.config.budget // self.largest))

    def _most_in_flight(self) -> int:
        return self.config.most_in_flight - self.retired * self.config.depth

    # -- failures ----------------------------------------------------------------------------------

    def _ready(self, event: ev.Ready) -> list[Action]:
        record = self.workers[event.worker]
        record.alive, record.was_ready, record.failed_starts = True, True, 0
        self.unready.discard(event.worker)
        return []

    def _unready(self, event: ev.Unready) -> list[Action]:
        # Raise this in place of the worker's first batch, so that what is delivered before it does
        # not depend on timing.
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
            return []  # it had nothing left to do in this epoch
        if not self.config.restarts and event.cause is not Cause.OVERDUE:
            return self._give_up(Reason.DIED, worker)
        entry = self.ledger.entries.get(event.batch) if event.batch in owed else None
        # a stream resumes after its last batch that arrived, but the sample that kills its worker cannot be skipped
        if self.config.iterable and record.active and (event.cause is Cause.OVERDUE or (entry and entry.deaths)):
            return self._give_up(Reason.CANNOT_REPLAY, worker)
        record.failed_starts = 0 if event.prepared else record.failed_starts + 1
        came_and_went = record.was_ready or event.cause is Cause.MACHINE  # nothing says that it cannot start
        if record.failed_starts >= (FAILED_STARTS_LATER if came_and_went else FAILED_STARTS_AT_FIRST):
            return self._give_up(Reason.NEVER_READY, worker)
        self.restarts += 1
        if self.restarts > self.config.max_restarts:
            return self._give_up(Reason.TOO_MANY_DEATHS, worker)
        questions = self.blame.record_death(event, entry)
        if (
            event.cause is Cause.MEMORY
            and not self.config.iterable
            and any(r.active and r.alive for r in self.workers if r is not record)
        ):
            return self._shrink(worker, owed)
        record.alive = True
        record.dismissed = False
        asked_about = {action.batch for action in questions}
        again = [act.Send(worker, batch) for batch in owed if batch not in asked_about]
        return [act.Start(worker), *questions, *again]

    def _shrink(self, worker: int, owed: list[int]) -> list[Action]:
        """Divide a worker's batches among the others; do not replace it."""
        record = self.workers[worker]
        record.retired, record.active = True, False
        self.retired += 1
        others = [n for n, other in enumerate(self.workers) if other.active and other.alive]
        todo: list[Action] = [act.Shrink(worker, len(others))]
        for batch in owed:
            taker = min(others, key=lambda n: self.workers[n].undelivered)
            self.ledger.entries[batch].worker = taker
            self.workers[taker].undelivered += 1
            todo.append(act.Send(taker, batch))
        # batches that arrived and are not delivered yet keep their worker's number
        record.undelivered -= len(owed)
        return todo

    def _lost(self, event: ev.Lost) -> list[Action]:
        self.workers[event.worker].alive = False
        return []

    def _make_again(self, event: ev.MakeAgain) -> list[Action]:
        entry = self.ledger.entries.get(event.batch)
        if entry is None or entry.arrived:
            return []
        return [act.Send(entry.worker, event.batch)]

    def _overdue(self, event: ev.Overdue) -> list[Action]:
        # the death that follows is an event of its own; the policy is asked then
        owes = self.ledger.owes(event.worker, event.batch)
        return [act.Stop(event.worker, Reason.OVERDUE)] if owes else []

    def _suspended(self, event: ev.Suspended) -> list[Action]:
        record = self.workers[event.worker]
        if not record.alive:
            return []
        record.suspended += 1
        if record.suspended <= CONTINUE_MOST:
            return [act.Continue(event.worker)]
        record.suspended = 0
        return [act.Stop(event.worker, Reason.SUSPENDED)]

    def _forgotten(self, event: ev.Forgotten) -> list[Action]:
        # the replacement gets the batches that this worker owes
        owes = self.workers[event.worker].alive and self.ledger.held_by(event.worker)
        return [act.Stop(event.worker, Reason.FORGOTTEN)] if owes else []

    def _timed_out(self, _: ev.TimedOut) -> list[Action]:
        # this does not end the epoch: the consumer may ask again
        if not self.wanting:
            return []
        self.wanting = False
        return [act.GiveUp(Reason.TIMED_OUT)]

    def _give_up(self, reason: Reason, worker: int) -> list[Action]:
        self.over = self.sampler_ended = True
        self.wanting = False
        drops = [act.Drop(lost) for lost in sorted(self.ledger.entries)]
        self.ledger.entries.clear()
        for record in self.workers:
            record.undelivered = 0
        return [*drops, act.GiveUp(reason, worker)]

    def _close(self, _: ev.Closed) -> list[Action]:
        # the driver gives the memory of all batches back and closes the pool
        self.closed = self.over = True
        self.ledger.entries.clear()
        return []


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
    ev.Overdue: Machine._overdue,
    ev.Suspended: Machine._suspended,
    ev.Forgotten: Machine._forgotten,
    ev.Death: Machine._died,
    ev.Lost: Machine._lost,
    ev.MakeAgain: Machine._make_again,
    ev.TimedOut: Machine._timed_out,
    ev.Closed: Machine._close,
}
