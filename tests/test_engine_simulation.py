"""Hypothesis drives the engine through any interleaving of results, errors, deaths, silences, slow workers, early
close and re-iteration. Whatever happens: each batch once, in order, never too many under way, and it ends.

The number of schedules is `UNJAM_SCHEDULES`; `make simulate` runs 100,000.
"""

from __future__ import annotations

import dataclasses
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.config import Config
from unjam.loader.engine.elastic_machine import ElasticMachine
from unjam.loader.engine.machine import Machine

# the same schedules each time, unless more of them are asked for
SCHEDULES = int(os.environ.get("UNJAM_SCHEDULES", "1000"))
THOROUGHLY = settings(
    max_examples=SCHEDULES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
MOST_STEPS = 3000

configs = st.builds(
    Config,
    workers=st.integers(1, 4),
    depth=st.integers(1, 3),
    in_order=st.booleans(),
    iterable=st.booleans(),
    keeps_workers=st.booleans(),
    budget=st.none() | st.integers(1, 400),
    restarts=st.booleans(),
    max_restarts=st.integers(0, 40),
)


class Schedule:
    """Decisions, a byte each; when the bytes are used up, everybody simply works."""

    def __init__(self, decisions: bytes) -> None:
        self._bytes = iter(decisions)

    def choose(self, options):
        return options[next(self._bytes, 0) % len(options)]


def validate(machine: Machine) -> None:
    """Fail if an invariant does not hold."""
    entries = machine.ledger.entries
    assert len(entries) + machine.drawing <= machine.config.most_in_flight, "more in flight than allowed"
    assert all(batch < machine.next_batch for batch in entries), "a batch that was never drawn is under way"
    assert machine.owed_draws >= 0, "more draws than owed"
    for number, record in enumerate(machine.workers):
        counted = sum(1 for entry in entries.values() if entry.worker == number)
        assert machine.closed or record.undelivered == counted, f"worker {number}: {record.undelivered} != {counted}"
    assert not (machine.over and entries), "the epoch is over and batches are under way"
    assert not (machine.drawing and machine.sampler_ended), "asking a sampler that has ended"


class World:
    """Workers, a sampler and a consumer that do whatever the schedule says."""

    def __init__(self, schedule: Schedule, config: Config, length: int, size: int = 0) -> None:
        self.schedule = schedule
        self.config = config
        self.length = length
        self.machine = ElasticMachine(config, size=size) if size else Machine(config)
        self.leaving: list[int] = []
        self.alive = [False] * config.workers
        self.mailbox: list[list[int]] = [[] for _ in range(config.workers)]
        self.ended = [False] * config.workers
        # how many batches each worker's iterable has
        self.stock = [0] * config.workers
        self.given = 0
        self.drawn: list[int] = []
        self.dropped: set[int] = set()
        self.delivered: list[int] = []
        self.outcome = None
        self.deaths = 0
        # samples that end whoever touches them, and those that were left out of their batch
        self.killers: set[int] = set()
        self.excused: set[int] = set()
        self.judged: list[int] = []
        self.tries: dict[int, int] = {}

    def feed(self, event: ev.Event) -> None:
        queue = list(self.machine.handle(event))
        while queue:
            action = queue.pop(0)
            match action:
                case act.Draw(batch):
                    if self.given < self.length:
                        self.given += 1
                        self.drawn.append(batch)
                        queue = list(self.machine.handle(ev.Drew(batch))) + queue
                        if batch not in self.machine.ledger.entries:
                            self.dropped.add(batch)
                    else:
                        queue = list(self.machine.handle(ev.SamplerEnded())) + queue
                case act.Start(worker):
                    assert not self.alive[worker], "started twice"
                    self.alive[worker] = True
                    self.mailbox[worker] = []
                    self.ended[worker] = False
                case act.Send(worker, batch):
                    assert batch in self.drawn, "sent what was never drawn"
                    self.mailbox[worker].append(batch)
                case act.Drop(batch):
                    self.dropped.add(batch)
                case act.Deliver(batch):
                    assert self.outcome is None
                    self.delivered.append(batch)
                    self.outcome = action
                case act.End() | act.GiveUp():
                    assert self.outcome is None
                    self.outcome = action
                case act.Stop(worker, reason):
                    if reason is act.Reason.OVERDUE:
                        self.kill(worker, queue, ev.Cause.OVERDUE)
                    elif reason in (act.Reason.SUSPENDED, act.Reason.FORGOTTEN):
                        self.kill(worker, queue, ev.Cause.STOPPED)
                    elif reason is act.Reason.TOO_MANY:
                        assert not self.machine.ledger.held_by(worker), "asked to leave while it owes something"
                        self.mailbox[worker] = []
                        self.leaving.append(worker)
                    else:
                        self.mailbox[worker] = []
                case act.AskPolicy(worker, batch):
                    assert self.alive[worker], "judged before there is somebody to make the batch again"
                    self.judged.append(batch)
                    queue = self.judge(worker, batch) + queue
                case act.Continue():
                    pass
                case act.Shrink(worker, left):
                    assert not self.alive[worker]
                    assert left >= 1, "nobody is left"
            validate(self.machine)

    def judge(self, worker: int, batch: int) -> list:
        match self.schedule.choose(["skip", "raise", "retry"]):
            case "raise":
                return self.machine.handle(ev.Failure(worker, batch))
            case "retry":
                self.tries[batch] = self.tries.get(batch, 0) + 1
                if self.tries[batch] > 3:
                    return self.machine.handle(ev.Result(worker, batch))
                return self.machine.handle(ev.MakeAgain(batch))
        self.excused.add(batch)
        return self.machine.handle(ev.MakeAgain(batch))

    def kill(self, worker: int, queue: list, cause: ev.Cause) -> None:
        if self.alive[worker]:
            if worker in self.leaving:
                self.leaving.remove(worker)
            on = self.mailbox[worker][0] if self.mailbox[worker] else None
            self.alive[worker] = False
            self.mailbox[worker] = []
            queue += self.machine.handle(ev.Death(worker, on, 0, cause))

    def step(self) -> None:
        """One thing happens somewhere."""
        busy = [w for w in range(self.config.workers) if self.alive[w] and self.mailbox[w] and not self.ended[w]]
        what = self.schedule.choose(
            ["work"] * 9
            + ["death", "idle death", "early death", "memory", "overdue", "suspended", "forgotten"]
            + ["echo", "ready", "timeout", "killer"]
        )
        if isinstance(self.machine, ElasticMachine):
            if self.leaving and self.schedule.choose([0, 1]) == 0:
                self.die(self.leaving.pop(0), None)
            elif self.schedule.choose(range(4)) == 3:
                workers = self.schedule.choose(range(1, self.config.workers + 1))
                if self.schedule.choose([0, 1]):
                    self.feed(ev.Resized(0, 1))  # everybody leaves, and is wanted back at once
                self.feed(ev.Resized(workers, self.schedule.choose(range(1, self.config.depth + 1))))
                return
        if what == "work" or not busy:
            if busy:
                self.work(self.schedule.choose(busy))
            return
        worker = self.schedule.choose(busy)
        batch = self.mailbox[worker][0]
        deaths = {
            "death": ev.Death(worker, batch, self.schedule.choose([0, 1, -1])),
            "idle death": ev.Death(worker),
            "early death": ev.Death(worker, prepared=False),
            "memory": ev.Death(worker, batch, 0, ev.Cause.MEMORY),
        }
        if what in deaths:
            if self.deaths < 15:
                self.deaths += 1
                self.die(worker, deaths[what])
        elif what == "killer":
            if batch not in self.excused:
                self.killers.add(batch)
        elif what == "overdue":
            if self.deaths < 15:
                self.deaths += 1
                self.feed(ev.Overdue(worker, batch))
        elif what == "forgotten":
            if self.deaths < 15:
                self.deaths += 1
                self.feed(ev.Forgotten(worker))
        elif what == "suspended":
            if self.deaths < 15:
                self.deaths += 1
                self.feed(ev.Suspended(worker))
        elif what == "echo":
            # an answer that nobody waits for: of an earlier epoch, or a second time
            self.feed(ev.Result(worker, batch - 1000, 1))
        elif what == "ready":
            self.feed(ev.Ready(worker))
        elif what == "timeout" and self.outcome is None:
            self.feed(ev.TimedOut())

    def die(self, worker: int, death: ev.Death | None) -> None:
        self.alive[worker] = False
        self.mailbox[worker] = []
        if worker in self.leaving:
            self.leaving.remove(worker)
        self.feed(death or ev.Death(worker))

    def work(self, worker: int) -> None:
        if self.mailbox[worker][0] in self.killers - self.excused and self.mailbox[worker][0] in self.drawn:
            self.die(worker, ev.Death(worker, self.mailbox[worker][0], 0))
            return
        self.feed(ev.Ready(worker))
        batch = self.mailbox[worker].pop(0)
        if batch not in self.drawn:
            # left over from an epoch that the consumer broke out of; made, and nobody wants it
            self.feed(self.schedule.choose([ev.Result(worker, batch, 1), ev.Exhausted(worker, batch)]))
            return
        if self.config.iterable and self.stock[worker] == 0:
            self.ended[worker] = True
            self.feed(ev.Exhausted(worker, batch))
            return
        self.stock[worker] -= 1
        size = self.schedule.choose(range(200))
        if self.schedule.choose(range(10)) == 9:
            self.feed(ev.Failure(worker, batch))
        else:
            self.feed(ev.Result(worker, batch, size))

    def epoch(self, takes: int) -> str:
        """Iterate; return how it ended."""
        for worker in range(self.config.workers):
            if self.ended[worker]:
                self.mailbox[worker] = []  # a worker whose iterable has ended passes over what it was sent
            self.ended[worker] = False
            if self.config.iterable:
                self.stock[worker] = self.schedule.choose(range(6))
        self.given = 0
        self.drawn, self.dropped, self.delivered, self.outcome = [], set(), [], None
        self.deaths = 0
        self.killers, self.excused, self.judged, self.tries = set(), set(), [], {}
        stock = sum(self.stock)
        self.feed(ev.Began())
        for _ in range(takes):
            self.outcome = None
            self.feed(ev.Wanted())
            steps = 0
            while self.outcome is None:
                self.step()
                steps += 1
                assert steps < MOST_STEPS, "the consumer waits for ever"
            if isinstance(self.outcome, act.GiveUp):
                if self.outcome.reason is act.Reason.TIMED_OUT:
                    continue
                return "gave up"
            if isinstance(self.outcome, act.End):
                self.check_complete(stock)
                return "ended"
        return "left early"

    def check_order(self) -> None:
        assert len(set(self.delivered)) == len(self.delivered), "delivered twice"
        if self.config.in_order:
            assert self.delivered == sorted(self.delivered), "out of order"

    def check_complete(self, stock: int) -> None:
        self.check_order()
        assert set(self.delivered) | (self.dropped & set(self.drawn)) == set(self.drawn), "lost"
        assert not set(self.delivered) & self.dropped, "delivered and dropped"
        if self.config.iterable:
            assert len(self.delivered) <= stock
            if self.given < self.length:
                assert len(self.delivered) == stock, "an iterable's samples are missing"
        else:
            assert len(self.delivered) == self.length, "every index exactly once"


@THOROUGHLY
@given(
    decisions=st.binary(max_size=600),
    config=configs,
    length=st.integers(0, 25),
    takes=st.lists(st.sampled_from([1000, 3]), min_size=1, max_size=3),
)
def test_invariants_hold_under_any_interleaving(decisions, config, length, takes):
    interleave(World(Schedule(decisions), config, length), takes)


@THOROUGHLY
@given(
    decisions=st.binary(max_size=600),
    config=configs,
    length=st.integers(0, 40),
    takes=st.lists(st.sampled_from([1000, 3]), min_size=1, max_size=3),
    size=st.integers(1, 4),
)
def test_invariants_hold_while_the_pool_is_resized(decisions, config, length, takes, size):
    config = dataclasses.replace(config, iterable=False)
    interleave(World(Schedule(decisions), config, length, size), takes)


def interleave(world: World, takes: list[int]) -> None:
    config = world.config
    for most in takes:
        how = world.epoch(most)
        world.check_order()
        if how == "gave up":
            # a loader that gave up is closed, and a new one made
            break
        if not config.keeps_workers:
            break
        for worker, record in enumerate(world.machine.workers):
            if not world.alive[worker] and record.alive:
                world.feed(ev.Death(worker))
    world.feed(ev.Closed())
    assert world.machine.handle(ev.Wanted()) == []


# -- who is to blame ---------------------------------------------------------------------------------------------------


def machine(**options) -> Machine:
    made = Machine(Config(**{"workers": 1, "depth": 2, **options}))
    queue = list(made.handle(ev.Began()))
    while queue:
        action = queue.pop(0)
        if isinstance(action, act.Draw):
            queue = list(made.handle(ev.Drew(action.batch))) + queue
    return made


def names(actions: list) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_a_sample_that_kills_two_workers_goes_to_the_policy():
    made = machine()
    assert "AskPolicy" not in names(made.handle(ev.Death(0, 0, 3)))
    assert act.AskPolicy(0, 0, 3, act.Reason.DIED_REPEATEDLY, 2) in made.handle(ev.Death(0, 0, 3))
    # tried once more because the policy says so: one more death is enough
    made.handle(ev.MakeAgain(0))
    assert act.AskPolicy(0, 0, 3, act.Reason.DIED_REPEATEDLY, 3) in made.handle(ev.Death(0, 0, 3))
    # left out at last: its batch passes, and that acquits nobody
    made.handle(ev.MakeAgain(0))
    made.handle(ev.Result(0, 0))
    assert made.blame.false_suspects == 0


def test_two_deaths_on_different_samples_blame_no_sample():
    made = machine()
    assert "AskPolicy" not in names(made.handle(ev.Death(0, 0, 3)))
    assert "AskPolicy" not in names(made.handle(ev.Death(0, 0, 4)))


def test_more_deaths_are_needed_after_a_suspect_was_cleared():
    made = machine()
    made.handle(ev.Death(0, 0, 3))
    made.handle(ev.Wanted())
    made.handle(ev.Result(0, 0))
    assert made.blame.false_suspects == 1
    deaths = [names(made.handle(ev.Death(0, 1, 0))) for _ in range(3)]
    assert ["AskPolicy" in one for one in deaths] == [False, False, True]


def test_the_death_of_an_idle_worker_points_to_an_outside_cause():
    made = machine()
    made.handle(ev.Death(0))
    assert "AskPolicy" not in names(made.handle(ev.Death(0, 0, 3)))
    assert "AskPolicy" not in names(made.handle(ev.Death(0, 0, 3)))


def test_a_timed_out_sample_goes_to_the_policy_at_once():
    made = machine(restarts=False)
    assert made.handle(ev.Overdue(0, 0)) == [act.Stop(0, act.Reason.OVERDUE)]
    decided = made.handle(ev.Death(0, 0, 5, ev.Cause.OVERDUE))
    assert act.AskPolicy(0, 0, 5, act.Reason.OVERDUE) in decided
    assert act.Start(0) in decided, "a worker that unjam stopped itself is replaced, whatever on_worker_death says"


def test_a_suspended_worker_is_continued_then_replaced():
    made = machine()
    decided = [made.handle(ev.Suspended(0))[0] for _ in range(4)]
    assert decided == [act.Continue(0)] * 3 + [act.Stop(0, act.Reason.SUSPENDED)]
    assert names(made.handle(ev.Death(0, 0, 0, ev.Cause.STOPPED))) == ["Start", "Send", "Send"]


def test_memory_kills_shrink_the_pool_before_giving_up():
    made = machine(workers=3)
    decided = made.handle(ev.Death(1, 1, 0, ev.Cause.MEMORY))
    assert decided[0] == act.Shrink(1, 2)
    assert {action.worker for action in decided[1:]} == {0, 2}, "the others share its work"
    assert made.handle(ev.Death(0, 0, 0, ev.Cause.MEMORY))[0] == act.Shrink(0, 1)
    owed = made.ledger.held_by(2)
    assert len(owed) == 6
    # the last one is replaced, and its sample judged when it happens again
    assert names(made.handle(ev.Death(2, owed[0], 0, ev.Cause.MEMORY)))[0] in ("Start", "AskPolicy")
    again = made.handle(ev.Death(2, owed[0], 0, ev.Cause.MEMORY))
    assert any(
        action == act.AskPolicy(2, owed[0], 0, act.Reason.KILLED_FOR_MEMORY, action.deaths)
        for action in again
        if isinstance(action, act.AskPolicy)
    )


def test_work_of_a_memory_killed_worker_goes_to_running_workers_only():
    made = machine(workers=2)
    made.handle(ev.SamplerEnded())
    made.handle(ev.Wanted())
    for batch in made.ledger.held_by(0):
        made.handle(ev.Result(0, batch))
    made.handle(ev.Death(0))  # idle, and nothing left to do: it is not replaced
    owed = made.ledger.held_by(1)
    assert names(made.handle(ev.Death(1, owed[0], 0, ev.Cause.MEMORY)))[0] == "Start"


def test_a_worker_that_never_starts_is_given_up():
    made = machine()
    ends = [names(made.handle(ev.Death(0, prepared=False)))[-1] for _ in range(3)]
    assert ends[-1] == "GiveUp"
    assert "GiveUp" not in ends[:-1]


def test_a_worker_that_once_started_gets_more_attempts():
    made = machine()
    made.handle(ev.Ready(0))
    ends = [names(made.handle(ev.Death(0, prepared=False)))[-1] for _ in range(10)]
    assert ends[-1] == "GiveUp"
    assert "GiveUp" not in ends[:-1]


def test_restarts_are_counted_per_epoch():
    made = machine(max_restarts=1, keeps_workers=True)
    assert "Start" in names(made.handle(ev.Death(0, 0, 0)))
    made.handle(ev.Began())
    assert "GiveUp" not in names(made.handle(ev.Death(0)))
