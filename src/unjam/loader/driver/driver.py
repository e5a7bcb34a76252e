"""The driver: carries out what the engine decides, on a pool.

It holds no reference to the iterator that uses it, so that dropping the iterator ends the workers at once.

One thread at a time: a second one waits its turn, and gets the next batch. `close` may be called from anywhere.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from unjam.errors import SampleError, TooManyErrorsError
from unjam.loader.driver.auto_size import Pacer
from unjam.loader.driver.consumer_lock import Turn
from unjam.loader.driver.incidents import Desk
from unjam.loader.driver.index_source import Drawer
from unjam.loader.driver.on_error import Court
from unjam.loader.driver.pinning import Pinner
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.restore import resync
from unjam.loader.driver.settings_TMP import CannotLoad, Options, interrupted
from unjam.loader.driver.settling_TMP import settle, settle_end
from unjam.loader.driver.stalls import Watch
from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.config import Config
from unjam.loader.engine.deadlines import LOOK_AGAIN
from unjam.loader.engine.machine import Machine
from unjam.loader.pool.protocol import Arrival, Asked, Facts, Load, Pool, Work

# batches over recycled memory that the consumer may hold; later ones are copied into ordinary memory
MOST_HELD = 4


class Feed:
    """One loader's machine and pool, through any number of epochs."""

    def __init__(
        self, pool: Pool, config: Config, options: Options, court: Court, recorder: Recorder, pinner: Pinner | None,
        pacer: Pacer | None = None,
    ) -> None:  # fmt: skip
        self.pool = pool
        self._pacer = pacer
        self._machine = Machine(config)
        self._options = options
        self._court = court
        self._recorder = recorder
        self._pinner = pinner
        self._watch = Watch.over(pool, options.sample_timeout, options.warn_after)
        self._desk = Desk(pool, config, court, recorder, options.timeout, options.sample_timeout)
        self._work: dict[int, Work] = {}
        self._loads: dict[int, Load] = {}
        self._todo: deque[act.Action] = deque()
        self._outcome: act.Deliver | act.End | act.GiveUp | None = None
        self.drawer = Drawer(options, spares=court.policy.may_replace and not config.iterable)
        self._first_of_epoch = 0
        self._epochs = 0
        self._delivered = 0
        # until the first batch has come, what was drawn in this epoch
        self._drawn: list[Any] = []
        self.turn = Turn()
        self._owner = os.getpid()
        # what an exception left behind that a signal handler raised: something half done; a batch that is open
        self._torn = self._hurt = False
        self._opened: tuple[int, Any] | None = None
        self.closed = False

    def begin(self, draw: Callable[[], Any], shared_seed: int | None) -> None:
        """Begin an epoch; `draw` gives the next indices or raises StopIteration."""
        self.turn.check_idle()
        self._drawn = []
        self._torn, self._opened = False, None
        if self._epochs:
            self._take_deaths()
            self.pool.resume(shared_seed)
        self._epochs += 1
        self._outcome = None
        self._todo.clear()
        self.drawer.begin()
        self._first_of_epoch = self._machine.drawn
        self._recorder.begin(self.pool, self._machine.config.workers, self._options.expected)
        if self._pacer is not None:
            self._recorder.auto = self._pacer.report
            self._pacer.begin(self.pool)
        try:
            self._pump(ev.Began(), draw)
        except BaseException:
            self._close()  # nobody will hold an iterator whose beginning failed
            raise

    def next(self, draw: Callable[[], Any], function: Callable[[SampleError], Any] | None = None) -> Any:
        """The next batch, or what was raised in its place. `function`: the user's; see NOTE [ The end of an iterator ]."""
        self.turn.take(lambda: self.closed)
        self._court.function = function
        try:
            data = self._resync() if self._torn else None
            self._torn = True  # until this has come to its end: a signal handler may raise in between
            if self._opened is None:
                data = self._next(draw)
            self._torn, self._opened = False, None
            return data
        finally:
            self._court.function = None
            self.turn.give_back()

    def _resync(self) -> Any:
        """See `resync`; a batch that was open already is delivered."""
        if self._opened is not None:
            batch, data = self._opened
            if self._outcome == act.Deliver(batch):
                self._outcome = None
            self._work.pop(batch, None)
            self._loads.pop(batch, None)
            return data
        found = resync(self._machine, self._todo, self._work, self._loads, self._outcome)
        self._outcome = self._outcome or found
        return None

    def close(self) -> None:
        """End the workers; batches that were delivered stay valid."""
        if self.closed:
            return
        # whoever waits in `next` looks at this at least every LOOK_AGAIN
        self.closed = True
        mine = self.turn.mine or os.getpid() != self._owner
        held = not mine and self.turn.wait(2 * LOOK_AGAIN.seconds)
        try:
            self._close()
        finally:
            if held:
                self.turn.give_back()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _next(self, draw: Callable[[], Any]) -> Any:
        begun = time.monotonic_ns()
        if self._pacer is not None:
            self._resize(self._pacer, draw)
        while not self.closed:
            self._await_outcome(draw, begun / 1e9)
            outcome = self._outcome
            match outcome:
                case act.Deliver(batch):
                    # it stays due until it is open: an exception that a signal handler raises in between must not lose it
                    load = self._loads[batch]
                    facts, data, problem = load.facts, None, None
                    if facts.told or facts.listed or load.empty or load.raises or self._court.knows(batch):
                        failed = load.facts.failures()
                        problem = settle(
                            self._court, self._recorder, batch, failed, empty=load.empty, raises=load.raises
                        )
                    if problem is None and not load.empty:
                        try:
                            data = load.open(copy=self.pool.held() >= MOST_HELD)
                            self._opened = (batch, data)
                        except Exception as error:  # noqa: BLE001 - it cannot be rebuilt here; raised below
                            problem = error
                    work = self._work.pop(batch)
                    del self._loads[batch]
                    self._outcome = None
                    self._delivered += 1
                    if self._drawn:
                        self._drawn = []
                    if problem is not None:
                        load.refuse()
                        if isinstance(problem, TooManyErrorsError):
                            self._close()
                        raise problem
                    if load.empty:
                        continue
                    self._count(work, facts, begun)
                    return data
                case act.GiveUp():
                    self._outcome = None
                    self._give_up(outcome)
                case act.End():
                    self._outcome = None
                    if self._pacer is not None:
                        self._pacer.end()
                    problem = self._recorder.ended()
                    if problem is not None:
                        raise problem
                    raise StopIteration
        raise StopIteration

    def _count(self, work: Work, facts: Facts, begun: int) -> None:
        now = time.monotonic_ns()
        self._recorder.delivered(work, facts, now - begun)
        if self._delivered == 1:
            self._recorder.starts.append(self.pool.started_in() / 1e9)
        if self._pacer is not None:
            self._pacer.delivered(facts, now - begun, now)
        self._watch.rest((now - begun) / 1e9)

    def _resize(self, pacer: Pacer, draw: Callable[[], Any]) -> None:
        wanted, pacer.wanted = pacer.wanted, None
        if wanted is not None:
            self._pump(ev.Resized(wanted.workers, wanted.depth), draw)

    def _close(self) -> None:
        self.closed = True
        self._machine.handle(ev.Closed())
        unopened = [*self._loads.values(), *(arrival.load for arrival in self.pool.arrivals)]
        for load in unopened:
            if load is not None:
                load.refuse()
        self._loads.clear()
        self.pool.arrivals.clear()
        self._work.clear()
        if self._pinner is not None:
            self._pinner.close()
        self.pool.close()

    def _await_outcome(self, draw: Callable[[], Any], begun: float) -> None:
        if self._todo:
            self._act(draw)  # what an interrupted call left to do
        if self._outcome is None:
            self._pump(ev.Wanted(), draw)
        if self._watch.due(begun):
            self._look(draw, 0.0)
        timeout = self._options.timeout
        arrivals = self.pool.arrivals
        while self._outcome is None and not self.closed:
            bound = self._watch.interval
            if timeout > 0:
                bound = min(bound, begun + timeout - time.monotonic())
                if bound <= 0:
                    self._pump(ev.TimedOut(), draw)
                    break
            if not arrivals:
                self.pool.wait(bound)
                if self._pinner is not None:
                    self._pinner.pin_all(arrivals)
                now = time.monotonic()
                if self._watch.due(now) and not arrivals:
                    self._look(draw, now - begun)
            while arrivals and self._outcome is None:
                first = arrivals[0]
                if isinstance(first.event, ev.Death):
                    arrivals.popleft()  # nobody dies twice
                self._take(first, draw)
                if arrivals and arrivals[0] is first:  # the others are taken off the list once they are dealt with
                    arrivals.popleft()
        if self._pinner is not None and not self.closed:
            # what has come meanwhile is pinned while the consumer computes
            self.pool.wait(0)
            self._pinner.pin_all(arrivals)

    def _look(self, draw: Callable[[], Any], waited: float) -> None:
        owed: dict[int, list[Work]] = {}
        for worker, work in self._owed():
            owed.setdefault(worker, []).append(work)
        for event in self._watch.look(time.monotonic(), owed, waited):
            if isinstance(event, ev.Forgotten) and self._machine.config.iterable:
                continue  # it could not be taken up where it was; should it only be late, that would end the epoch
            if isinstance(event, ev.Overdue) and not self._desk.over_time(event, self._work.get(event.batch)):
                continue
            self._pump(event, draw)

    def _take_deaths(self) -> None:
        """Between two epochs: whoever is gone is started anew with the next one, and owes nothing."""
        self.pool.wait(0)
        for arrival in [one for one in self.pool.arrivals if isinstance(one.event, ev.Death)]:
            self.pool.arrivals.remove(arrival)
            self._desk.death(arrival.event, [], self._work)  # type: ignore[arg-type] # chosen above
            self._machine.handle(ev.Lost(arrival.event.worker))  # type: ignore[union-attr] # as above

    def _take(self, arrival: Arrival, draw: Callable[[], Any]) -> None:
        event, load = arrival.event, arrival.load
        match event:
            case ev.Result(batch=batch) | ev.Failure(batch=batch) if load is not None:
                if batch not in self._work or self._loads.get(batch, load) is not load:
                    load.refuse()  # of an earlier epoch, or a second answer
                    return
                self._loads[batch] = load
            case Asked(worker, batch):
                assert load is not None, "a question without a failure"
                # a question of an earlier epoch still needs an answer: somebody waits for it
                decision = self._court.ask(batch, load.facts.failures()[0]).value if batch in self._work else "skip"
                self.pool.answer(worker, decision)
                return
            case ev.Unready(worker) if load is not None:
                self._desk.unready[worker] = load
            case ev.Exhausted(worker, batch) if load is not None and batch in self._work:
                failures = load.facts.failures()
                problem = settle_end(self._court, self._recorder, batch, failures, worker, cut_short=event.cut_short)
                if problem is not None:
                    self._close()
                    raise problem
        self._pump(event, draw)

    def _pump(self, event: ev.Event, draw: Callable[[], Any]) -> None:
        """Feed an event to the machine and do what it says, until it says nothing more."""
        if isinstance(event, ev.Death):
            event = self._desk.fair(event)
        decided = self._machine.handle(event)
        self._todo.extend(decided)
        if isinstance(event, ev.Death):
            self._desk.death(event, decided, self._work)
        self._act(draw)

    def _act(self, draw: Callable[[], Any]) -> None:
        # an action leaves the list only when it is done: an exception that a signal handler raises in between must not
        # lose one. Each may be done twice.
        todo = self._todo
        failed: BaseException | None = None
        while todo:
            action = todo[0]
            answer: ev.Event | None = None
            # the three that happen for every batch come first
            match action:
                case act.Deliver():
                    self._outcome = action
                case act.Draw(batch):
                    answer = ev.Drew(batch)
                    try:
                        if batch not in self._work:
                            self._hurt, hurt = True, self._hurt
                            self._draw(batch, draw)
                            self._hurt = False
                    except StopIteration:
                        answer, self._hurt = ev.SamplerEnded(), False
                        failed = interrupted() if hurt else None
                    except Exception as error:  # noqa: BLE001 - the sampler is user code; raised below
                        answer, failed, self._hurt = ev.SamplerEnded(), error, False
                case act.Send(worker, batch):
                    if batch in self._work:
                        self.pool.send(worker, self._work[batch])
                case act.Judge(worker, batch):
                    answer = self._judge(action, worker, batch)
                case act.Start(worker):
                    self.pool.start(worker)
                case act.Stop(worker, reason):
                    self.pool.stop(worker, reason)
                case act.Drop(batch):
                    self._drop(batch)
                case act.End() | act.GiveUp():
                    self._outcome = action
                case act.Warn(worker, batch):
                    self._desk.warn(worker, self._work.get(batch))
                case act.Continue(worker):
                    self._desk.go_on(worker)
                case act.Shrink(worker, left):
                    self._desk.shrunk(worker, left)
            todo.popleft()
            if answer is not None:
                todo.extendleft(reversed(self._machine.handle(answer)))
                if isinstance(action, act.Draw) and action.batch not in self._machine.ledger.entries:
                    self._work.pop(action.batch, None)
        if failed is not None:
            raise failed

    def _draw(self, batch: int, draw: Callable[[], Any]) -> None:
        work = self._work[batch] = self.drawer.work(batch, batch - self._first_of_epoch, self._epochs, draw())
        if self._delivered == 0:
            self._drawn.append(list(work.index) if type(work.index) is list else work.index)

    def _judge(self, action: act.Judge, worker: int, batch: int) -> ev.Event | None:
        """Ask the policy about a sample that ended its worker; see `Desk.judge`."""
        work = self._work.get(batch)
        if work is None or batch in self._loads:
            return None
        missing = self._desk.judge(action, work)
        if missing is None:
            return ev.Reprieved(batch)
        self._loads[batch] = missing
        return ev.Failure(worker, batch) if missing.raises else ev.Result(worker, batch)

    def _drop(self, batch: int) -> None:
        self._work.pop(batch, None)
        self._court.forget(batch)
        load = self._loads.pop(batch, None)
        if load is not None:
            load.refuse()

    def _give_up(self, outcome: act.GiveUp) -> None:
        if outcome.reason is act.Reason.TIMED_OUT:
            raise self._desk.timed_out(next(iter(self._owed()), None))
        if outcome.reason is act.Reason.UNREADY:
            worker = outcome.worker if outcome.worker is not None else 0
            error, loading = self._desk.not_ready(worker)
            self._close()
            # nothing was delivered yet, so all that was drawn can be drawn again
            if loading and self._delivered == 0:
                raise CannotLoad(error, self._drawn)
            raise error
        problem = self._desk.died(outcome)
        self._close()
        raise problem

    def _owed(self) -> list[tuple[int, Work]]:
        """What has not come yet, the oldest first, and from whom."""
        known, loads, entries = self._work, self._loads, self._machine.ledger.entries
        return [(e.worker, known[n]) for n, e in sorted(entries.items()) if n in known and n not in loads]
