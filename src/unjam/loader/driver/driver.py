"""The driver carries out what the engine decides, on a pool.

A batch passes through: `next` -> `_await_outcome` -> `_handle` (the engine decides) -> `_carry_out`
(draw, send) -> `_arrived` (a result came) -> `_deliver`. Only `_decide` calls the engine, only
`IndexSource` calls the sampler, and only `BatchTable` owns results that arrived.

The driver holds no reference to the iterator that uses it, so dropping the iterator ends the
workers at once. One thread at a time may ask for a batch. Any thread may call `close`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from unjam.deadlines import STALL_CHECK
from unjam.errors import ClusterError, SampleError, TooManyErrorsError
from unjam.loader.device.transfer import Transfer
from unjam.loader.driver.auto_size import AutoSizer
from unjam.loader.driver.batch_table import BatchTable, restore
from unjam.loader.driver.consumer_lock import ConsumerLock
from unjam.loader.driver.epoch_progress import CannotRebuild, EpochProgress, WorkerPositions
from unjam.loader.driver.incidents import Incidents
from unjam.loader.driver.index_source import IndexSource
from unjam.loader.driver.on_error import OnErrorPolicy
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.driver.stalls import StallDetector
from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.elastic_machine import ElasticMachine
from unjam.loader.engine.machine import Machine
from unjam.loader.pool.batch_result import BatchReport
from unjam.loader.pool.protocol import Pool, PoolEvent, Question
from unjam.loader.worker.messages import BatchRequest

# The consumer may hold this many batches in slots; we copy later ones to ordinary memory.
MOST_HELD = 4
# Seconds after the user's `timeout` until we look once more: a batch that arrives while a copy starts is not late.
LATE = 0.05
# in place of a batch whose samples were all skipped
_NO_BATCH = object()


class Driver:
    """One loader's engine and pool, for all epochs. `sizer`: changes the number of workers."""

    def __init__(
        self,
        pool: Pool,
        machine: Machine,
        settings: DriverSettings,
        recorder: Recorder,
        transfer: Transfer | None = None,
        sizer: AutoSizer | None = None,
    ) -> None:
        self.pool = pool
        self._machine = machine
        self._settings = settings
        self._recorder = recorder
        self._transfer = transfer or Transfer()
        self._sizer = sizer
        self._on_error = OnErrorPolicy(settings.policy, recorder)
        self._table = BatchTable(pool.arrivals)
        self._transfer.requests = self._table.requests
        self._indices = IndexSource(settings, spares=settings.policy.may_replace and not machine.config.iterable)
        self._stalls = StallDetector(pool, settings.sample_timeout, settings.warn_after)
        self._incidents = Incidents(pool, machine.config, self._on_error, recorder, settings)
        # The engine's decisions that are not carried out yet, and the one that `next` acts on.
        self._todo: deque[act.Action] = deque()
        self._outcome: act.Deliver | act.End | act.GiveUp | None = None
        self._has_begun = False
        self._delivered = 0
        self._positions = WorkerPositions()
        self.lock = ConsumerLock()
        self._owner_pid = os.getpid()
        # For recovery after an exception from a signal handler: whether `next` was interrupted, and
        # the batch that it had opened.
        self._interrupted = False
        self._opened: tuple[int, Any] | None = None
        # the same, before the user's `on_device`; and what its failures mean, which are recorded only once
        self._unpacked: tuple[int, Any] | None = None
        self._judged: tuple[int, BaseException | None] | None = None
        self.closed = False

    # -- called by the iterator --------------------------------------------------------------------

    def begin(
        self,
        draw: Callable[[], Any],
        shared_seed: int | None,
        progress: EpochProgress,
        drawn: Iterable[BatchRequest] = (),
    ) -> None:
        """Begin an epoch; `draw` returns the next indices or raises StopIteration.

        `progress`: counts what is delivered; already part-way if the epoch resumes another run's.
        `drawn`: what another driver drew for this epoch, before it delivered anything.
        """
        self.lock.check_idle()
        self._interrupted, self._opened = False, None
        self._unpacked = self._judged = None
        if self._has_begun:
            self._record_deaths_between_epochs()
            self._forget_last_epoch()
        self._positions.begin(progress, first=not self._has_begun)
        if self._has_begun:
            self.pool.begin_epoch(shared_seed, progress.epoch)
        self._has_begun = True
        self._indices.begin(progress, drawn)
        self._recorder.begin(self.pool, self._machine.config.workers, self._settings.expected)
        if self._sizer is not None:
            self._recorder.auto = self._sizer.report
            self._sizer.begin(self.pool)
        self._indices.draw = draw
        try:
            ended = frozenset(worker for worker, at in progress.worker_positions.items() if at.ended)
            self._handle(ev.Began(progress.last_worker + 1, ended))
            if self._sizer is not None and isinstance(self._machine, ElasticMachine):
                now, wanted = (self._machine.size, self._machine.depth), self._sizer.setting
                if now != (wanted.workers, wanted.depth):  # decided at the end of the last epoch
                    self._handle(ev.Resized(wanted.workers, wanted.depth))
        except BaseException:
            self._close()  # begin failed: the caller gets no iterator to close
            raise
        finally:
            self._indices.draw = None

    def next(
        self,
        draw: Callable[[], Any],
        function: Callable[[SampleError], Any] | None = None,
        on_device: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Return the next batch, or raise the error that replaces it.

        `function`: the user's `on_error`; see NOTE [ The end of an iterator ].
        """
        self.lock.enter(lambda: self.closed)
        self._indices.draw, self._on_error.function, self._transfer.on_device = draw, function, on_device
        try:
            data = self._restore() if self._interrupted else None
            self._interrupted = True  # a signal handler may raise before we return
            if self._opened is None:
                data = self._next()
            self._interrupted, self._opened = False, None
            return data
        except ClusterError:  # no node takes the workers
            self._close()
            raise
        finally:
            self._indices.draw = self._on_error.function = self._transfer.on_device = None
            self.lock.leave()

    def close(self) -> None:
        """End the workers. Delivered batches stay valid."""
        if self.closed:
            return
        # a thread that waits in `next` checks this at least every STALL_CHECK
        self.closed, held = True, False
        try:
            mine = self.lock.is_mine or os.getpid() != self._owner_pid
            held = not mine and self.lock.enter_to_close(2 * STALL_CHECK.seconds)
        finally:  # also after Ctrl-C: close() does nothing a second time
            try:
                self._close()
            finally:
                if held:
                    self.lock.leave()

    # -- waiting for a batch -----------------------------------------------------------------------

    def _next(self) -> Any:
        begun = time.monotonic_ns()
        if self._sizer is not None:
            wanted, self._sizer.wanted = self._sizer.wanted, None
            if wanted is not None:
                self._handle(ev.Resized(wanted.workers, wanted.depth))
        while not self.closed:
            self._await_outcome(begun / 1e9)
            outcome = self._outcome
            match outcome:
                case act.Deliver(batch):
                    data = self._deliver(batch, begun)
                    if data is not _NO_BATCH:
                        return data
                case act.GiveUp():
                    self._outcome = None
                    self._give_up(outcome)
                case act.End():
                    self._outcome = None
                    if self._sizer is not None:
                        self._sizer.end()
                    self._positions.progress.end(self._positions.arrived)
                    problem = self._recorder.ended()
                    if problem is not None:
                        raise problem
                    raise StopIteration
        raise StopIteration

    def _await_outcome(self, begun: float) -> None:
        """Handle what the workers send until the engine decides what the consumer gets."""
        if self._todo:
            self._carry_out()  # left over from an interrupted call
        if self._outcome is None:
            self._handle(ev.Wanted())
        if self._stalls.due(begun):
            self._check_workers(0.0)
        timeout = self._settings.timeout
        arrivals = self._table.arrivals
        while self._outcome is None and not self.closed:
            bound = self._stalls.interval
            bound = min(bound, max(LATE, begun + timeout - time.monotonic())) if timeout > 0 else bound
            if not arrivals:
                asked = time.monotonic()
                self.pool.wait(bound)
                self._transfer.take(arrivals)
                now = time.monotonic()
                if self._stalls.due(now) and not arrivals:
                    self._check_workers(now - begun)
                if 0 < timeout <= asked - begun and now - asked > LATE / 2 and not arrivals and self._outcome is None:
                    self._handle(ev.TimedOut())
            while arrivals and self._outcome is None:
                first = arrivals[0]
                if isinstance(first, ev.Death):
                    arrivals.popleft()  # never handle a death twice
                self._arrived(first)
                if arrivals and arrivals[0] is first:  # remove other events only after they are handled
                    arrivals.popleft()
        if self._transfer.active and not self.closed:
            self.pool.wait(0)
            self._transfer.take(arrivals)

    def _arrived(self, event: PoolEvent) -> None:
        """Store the result that came from a worker, and tell the engine about the event."""
        match event:
            case Question(worker, batch, failure):
                # answer questions of an earlier epoch too: the worker waits for the answer
                known = batch in self._table.requests
                self.pool.answer(worker, self._on_error.ask(batch, failure).value if known else "skip")
                return
            case ev.Result(worker, batch, result=result) | ev.Failure(worker, batch, result=result):
                result = self._transfer.wrap(batch, result)
                if not self._table.keep(batch, result):
                    return
                self._positions.batch_arrived(worker, batch, result.report.position_update)
            case ev.Unready(worker, result=result):
                self._incidents.unready[worker] = result
            case ev.Exhausted(worker, batch, result=result) if batch in self._table.requests:
                failures = result.report.failures()
                self._positions.ended(worker, result.report.position_update)
                problem = self._on_error.finish_iterable(batch, failures, worker, cut_short=event.cut_short)
                if problem is not None:
                    self._close()
                    raise problem
        self._handle(event)

    def _deliver(self, batch: int, begun: int) -> Any:
        """Open and return a batch, or raise its error; `_NO_BATCH` if all samples were skipped."""
        # The batch stays in the table until it is open, so that an exception from a signal handler
        # does not lose it.
        result = self._table.results[batch]
        report, data = result.report, None
        if self._judged is None or self._judged[0] != batch:
            problem = None
            if report.packed_failures or result.empty or result.raises or self._on_error.has_news_of(batch):
                problem = self._on_error.finish_batch(
                    batch, report.failures(), empty=result.empty, raises=result.raises
                )
            self._judged = (batch, problem)
        problem = self._judged[1]
        if problem is None and not result.empty:
            try:
                # a batch can be opened only once, and a signal handler may raise in the user's `on_device`
                if self._unpacked is None or self._unpacked[0] != batch:
                    self._unpacked = (batch, result.open(copy=self.pool.held() >= MOST_HELD))
                data = self._transfer.finish(self._unpacked[1])
                self._opened = (batch, data)
            except Exception as error:  # noqa: BLE001 - the batch cannot be rebuilt; raised below
                problem = error
        request = self._table.remove(batch)
        self._unpacked = self._judged = None
        assert request is not None, "a delivered batch without a request"
        self._positions.progress.finish_batch(request, delivered=problem is None and not result.empty)
        self._positions.delivered(batch)
        self._outcome = None
        self._delivered += 1
        self._indices.undelivered = None
        if problem is not None:
            result.refuse()
            if isinstance(problem, TooManyErrorsError):
                self._close()
            raise problem
        if result.empty:
            return _NO_BATCH
        self._count(request, report, begun)
        return data

    def _count(self, request: BatchRequest, report: BatchReport, begun: int) -> None:
        now = time.monotonic_ns()
        self._recorder.delivered(request, report, now - begun)
        if self._delivered == 1:
            self._recorder.starts.append(self.pool.started_in() / 1e9)
        if self._sizer is not None:
            self._sizer.delivered(report, now - begun, now)
        self._stalls.batch_delivered((now - begun) / 1e9)

    def _give_up(self, outcome: act.GiveUp) -> None:
        if outcome.reason is act.Reason.TIMED_OUT:
            raise self._incidents.timed_out(next(iter(self._owed()), None))
        if outcome.reason is act.Reason.UNREADY:
            error, loading = self._incidents.setup_error(outcome.worker)
            self._close()
            # nothing was delivered yet, so we can use the drawn indices again
            if loading and self._delivered == 0:
                raise CannotRebuild(error, self._indices.undelivered or [], self._positions.progress)
            raise error
        problem = self._incidents.death_error(outcome)
        self._close()
        raise problem

    # -- the engine decides, the driver carries out ------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        """Tell the engine about an event and carry out its decisions until there are none left."""
        if isinstance(event, ev.Death):
            event = self._incidents.corrected_cause(event)
            self._incidents.death(event, self._decide(event), self._table.requests)
        else:
            self._decide(event)
        self._carry_out()

    def _decide(self, event: ev.Event, *, before_others: bool = False) -> list[act.Action]:
        """Call the engine, here only; `_todo` keeps its decisions until `_carry_out` does them."""
        decided = self._machine.handle(event)
        if before_others:
            self._todo.extendleft(reversed(decided))
        else:
            self._todo.extend(decided)
        return decided

    def _carry_out(self) -> None:
        # An action leaves the list only when it is done, so that an exception from a signal handler
        # does not lose it. So an action may run twice.
        todo, table = self._todo, self._table
        failed: BaseException | None = None
        while todo:
            action = todo[0]
            answer: ev.Event | None = None
            done = 1
            # the three actions that every batch needs come first
            match action:
                case act.Deliver():
                    self._outcome = action
                case act.Draw(batch):
                    answer = ev.Drew(batch)
                    try:
                        if batch not in table.requests:
                            table.requests[batch] = self._indices.next(batch)
                    except StopIteration:
                        answer = ev.SamplerEnded()
                    except Exception as error:  # noqa: BLE001 - the sampler is user code; raised below
                        answer, failed = ev.SamplerEnded(), error
                case act.Send(worker, batch):
                    if batch in table.requests:
                        self.pool.send(worker, table.requests[batch])
                case act.Start():
                    starts = list(itertools.takewhile(lambda one: isinstance(one, act.Start), todo))
                    self.pool.start(
                        [one.worker for one in starts if isinstance(one, act.Start)], self._positions.arrived
                    )
                    done = len(starts)
                case act.AskPolicy():
                    answer = self._ask_policy(action)
                case act.Stop(worker, reason):
                    self.pool.stop(worker, reason)
                case act.Drop(batch, exhausted):
                    self._drop(batch, exhausted=exhausted)
                case act.End() | act.GiveUp():
                    self._outcome = action
                case act.Continue(worker):
                    self._incidents.resume_worker(worker)
                case act.Shrink(worker, left):
                    self._incidents.shrunk(worker, left)
            if self.closed:
                return  # the sampler, a signal handler or another thread closed the loader
            for _ in range(done):
                todo.popleft()
            if answer is not None:
                self._decide(answer, before_others=True)
                if isinstance(action, act.Draw) and action.batch not in self._machine.ledger.entries:
                    table.requests.pop(action.batch, None)
        if failed is not None:
            raise failed

    def _ask_policy(self, action: act.AskPolicy) -> ev.Event | None:
        """Ask the policy about a sample that killed its worker; return the event for the engine."""
        request = self._table.requests.get(action.batch)
        if request is None or action.batch in self._table.results:
            return None
        instead = self._incidents.ask_policy(action, request)
        if instead is None:
            return ev.MakeAgain(action.batch)
        self._table.results[action.batch] = instead
        return ev.Failure(action.worker, action.batch) if instead.raises else ev.Result(action.worker, action.batch)

    # -- workers that are late, dead or closed -----------------------------------------------------

    def _check_workers(self, waited: float) -> None:
        """Check the workers that owe batches; tell the engine which are late or suspended."""
        owed: dict[int, list[BatchRequest]] = {}
        for worker, request in self._owed():
            owed.setdefault(worker, []).append(request)
        for event in self._stalls.check(time.monotonic(), owed):
            if isinstance(event, ev.Overdue):
                work_there = self._table.requests.get(event.batch)
                if not self._incidents.confirm_overdue(event, work_there):
                    continue
            self._handle(event)
            if not isinstance(event, ev.Suspended):
                owed.pop(event.worker, None)  # it is killed, and its incident recorded
        silent = self._stalls.silent(owed, waited)
        if silent is not None:
            self._incidents.warn(silent, owed[silent][0])

    def _owed(self) -> list[tuple[int, BatchRequest]]:
        return self._table.owed(self._machine.ledger.entries)

    def _record_deaths_between_epochs(self) -> None:
        """Record workers that died between epochs; they owe nothing and are started again."""
        self.pool.wait(0)
        for death in [event for event in self._table.arrivals if isinstance(event, ev.Death)]:
            self._table.arrivals.remove(death)
            self._incidents.death(death, [], self._table.requests)
            self._decide(ev.Lost(death.worker))

    def _drop(self, batch: int, *, exhausted: bool) -> None:
        request = self._table.requests.get(batch)
        if request is not None and exhausted:
            self._positions.progress.finish_batch(request, delivered=False)
        self._table.drop(batch)
        self._positions.drop(batch)
        self._on_error.forget(batch)

    def _forget_last_epoch(self) -> None:
        """Drop what an exception left half done: decisions, batches that were due, workers that were not started."""
        self._outcome = None
        self._todo.clear()
        for batch in list(self._table.requests):
            self._table.drop(batch)
            self._on_error.forget(batch)
        for number, record in enumerate(self._machine.workers):
            if record.alive and self.pool.pid(number) is None:
                self._decide(ev.Lost(number))

    def _restore(self) -> Any:
        """Recover after a signal handler raised; return the batch if it was already open."""
        if self._opened is not None:
            batch, data = self._opened
            if self._outcome == act.Deliver(batch):
                self._outcome = None
            request = self._table.remove(batch)
            if request is not None:
                self._positions.progress.finish_batch(request, delivered=True)
                self._positions.delivered(batch)
            return data
        found = restore(self._machine, self._todo, self._table, self._outcome, self._decide)
        self._outcome = self._outcome or found
        return None

    def _close(self) -> None:
        self.closed = True
        self._decide(ev.Closed())
        self._todo.clear()
        self._unpacked = self._judged = None
        self._table.close()
        try:
            self._transfer.close()
        finally:
            self.pool.close()
