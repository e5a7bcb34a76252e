"""A machine whose number of workers changes while it runs.

NOTE [ Elastic ]

`num_workers="auto"`: there are `config.workers` places, of which the first `size` are in use. When
a place is given up, its worker gets no more batches, makes those that it owes, and is then asked to
leave. If the place is needed again while the worker is leaving, a new one starts when the old one
is gone. So no batch is made twice or lost, whenever the size changes.

Which worker makes a batch depends on timing here, so it must not matter. A batch goes to the worker
that owes fewest. The consumer gets batches by number, as always. Random numbers belong to the batch
(`BatchRequest.seed`), not to the worker. So two runs deliver the same batches even if their sizes changed
differently. It also runs workers of which some are on this machine and others on a cluster, so
that the faster ones make more batches.

An iterable divides its samples by the number of workers, so that number cannot change within an
epoch: iterables run on the plain machine, and their size changes only between epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import override

from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Action, Reason
from unjam.loader.engine.machine import Machine


@dataclass(slots=True)
class ElasticMachine(Machine):
    """A machine whose number of workers may change; see NOTE [ Elastic ]."""

    size: int = 1
    depth: int = 2
    # places that were given up but whose workers still owe batches
    leaving: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        Machine.__post_init__(self)
        self.size = max(1, min(self.size, self.config.workers))
        self.depth = max(1, min(self.depth, self.config.depth))

    @override
    def handle(self, event: ev.Event) -> list[Action]:
        if self.closed:
            return []
        if isinstance(event, ev.Resized):
            return self._resized(event)
        if isinstance(event, ev.Death) and self._exit_was_expected(event.worker):
            return self._refill(event.worker)
        if isinstance(event, ev.Began):
            for number in range(len(self.workers)):
                self.workers[number].active = self._wants(number)
        # dataclass(slots=True) creates a new class, and super() would refer to the old one
        todo = Machine.handle(self, event)
        return todo + self._dismiss() if self.leaving and not isinstance(event, ev.Drew) else todo

    def _resized(self, event: ev.Resized) -> list[Action]:
        self.size = max(1, min(event.workers, len(self.workers)))
        self.depth = max(1, min(event.depth, self.config.depth))
        todo: list[Action] = []
        for number, record in enumerate(self.workers):
            if not self._wants(number):
                if record.active:
                    record.active = False
                    self.leaving.add(number)
                continue
            self.leaving.discard(number)
            if not record.active:
                todo += self._fill(number)
        return todo + self._dismiss() + self._advance()

    def _fill(self, number: int) -> list[Action]:
        record = self.workers[number]
        record.active = True
        if record.alive:
            return []
        record.alive, record.dismissed = True, False
        record.undelivered = sum(1 for entry in self.ledger.entries.values() if entry.worker == number)
        return [act.Start(number)]

    def _dismiss(self) -> list[Action]:
        """Stop the leaving workers that owe nothing any more."""
        todo: list[Action] = []
        for number in sorted(self.leaving):
            record = self.workers[number]
            if self.ledger.held_by(number):
                continue
            self.leaving.discard(number)
            if record.alive and not record.dismissed:
                record.dismissed = True
                todo.append(act.Stop(number, Reason.TOO_MANY))
        return todo

    def _exit_was_expected(self, number: int) -> bool:
        record = self.workers[number]
        gone = record.dismissed or not self._wants(number)
        return record.alive and gone and not self.ledger.held_by(number)

    def _refill(self, number: int) -> list[Action]:
        record = self.workers[number]
        record.alive = record.dismissed = False
        self.leaving.discard(number)
        wanted = self._wants(number) and not self.over and not self.sampler_ended
        return self._fill(number) + self._advance() if wanted else []

    # -- overrides of the plain machine ------------------------------------------------------------

    def _wants(self, number: int) -> bool:
        record = self.workers[number]
        if record.retired or (record.alive and record.dismissed):
            return False
        # a worker that was killed for memory leaves its place to the next one
        return number - sum(1 for other in self.workers[:number] if other.retired) < self.size

    def _awaits_worker(self) -> bool:
        if self.sampler_ended or any(record.active for record in self.workers):
            return False
        return any(record.alive and record.dismissed for record in self.workers)

    def _next_worker(self) -> int | None:
        owed = {n: 0 for n, record in enumerate(self.workers) if record.active}
        if not owed:
            return None
        for entry in self.ledger.entries.values():
            if not entry.arrived and entry.worker in owed:
                owed[entry.worker] += 1
        count, turn = len(self.workers), self.turn
        chosen = min(owed, key=lambda n: (owed[n], (n - turn) % count))
        self.turn = (chosen + 1) % count
        return chosen

    def _draw(self) -> list[Action]:
        # count what is in flight now, not what was delivered: the allowed number changes
        if self.drawing or self.sampler_ended or len(self.ledger.entries) >= self._most_within_budget():
            return []
        if not any(record.active for record in self.workers):
            return []
        self.drawing = True
        return [act.Draw(self.next_batch)]

    def _most_in_flight(self) -> int:
        return max(1, self.depth * sum(1 for record in self.workers if record.active and not record.retired))
