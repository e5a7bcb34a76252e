"""The driver: carries out what the engine decides, on a pool.

It holds no reference to the iterator that uses it, so that dropping the iterator ends the workers at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from unjam.engine import actions as act
from unjam.engine import events as ev
from unjam.engine.actions import Reason
from unjam.engine.deadlines import LOOK_AROUND
from unjam.engine.machine import Config, Machine
from unjam.errors import LoaderTimeoutError, WorkerDiedError
from unjam.pinning import PinnedLoad, Pinner
from unjam.pools.protocol import Arrival, Load, Pool, Work

# batches over recycled memory that the consumer may hold; later ones are copied into ordinary memory
MOST_HELD = 4


class CannotLoad(Exception):
    """A worker could not rebuild the dataset that it was sent; `drawn` are the indices that were drawn for nothing."""

    def __init__(self, error: BaseException, drawn: list[Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.drawn = drawn


class Feed:
    """One loader's machine and pool, through any number of epochs."""

    def __init__(self, pool: Pool, config: Config, *, timeout: float, pinner: Pinner | None) -> None:
        self.pool = pool
        self._machine = Machine(config)
        self._timeout = timeout
        self._pinner = pinner
        self._work: dict[int, Work] = {}
        self._loads: dict[int, Load] = {}
        self._unready: dict[int, Load] = {}
        self._todo: deque[act.Action] = deque()
        self._outcome: act.Deliver | act.End | act.GiveUp | None = None
        self._first_of_epoch = 0
        self._epochs = 0
        self._delivered = 0
        # until the first batch has come, what was drawn in this epoch
        self._drawn: list[Any] = []
        self.closed = False

    def begin(self, draw: Callable[[], Any], shared_seed: int | None) -> None:
        """Begin an epoch; `draw` gives the next indices or raises StopIteration."""
        if self._epochs:
            self.pool.resume(shared_seed)
        self._epochs += 1
        self._outcome = None
        self._todo.clear()
        self._first_of_epoch = self._machine.drawn
        try:
            self._pump(ev.Began(), draw)
        except BaseException:
            self.close()  # nobody will hold an iterator whose beginning failed
            raise

    def next(self, draw: Callable[[], Any]) -> Any:
        """The next batch, or what was raised in its place; StopIteration at the end of the epoch."""
        if self.closed:
            raise StopIteration
        if self._todo:
            self._act(draw)  # what an interrupted call left to do
        if self._outcome is None:
            self._pump(ev.Wanted(), draw)
        until = time.monotonic() + self._timeout if self._timeout > 0 else None
        while self._outcome is None:
            bound = LOOK_AROUND.seconds
            if until is not None:
                bound = min(bound, until - time.monotonic())
                if bound <= 0:
                    self._pump(ev.TimedOut(), draw)
                    break
            arrivals = self.pool.arrivals
            if not arrivals:
                self.pool.wait(bound)
                self._pin_arrivals()
            while arrivals and self._outcome is None:
                self._take(arrivals.popleft(), draw)
        if self._pinner is not None:
            # what has come meanwhile is pinned while the consumer computes
            self.pool.wait(0)
            self._pin_arrivals()
        outcome, self._outcome = self._outcome, None
        match outcome:
            case act.Deliver(batch):
                self._delivered += 1
                if self._drawn:
                    self._drawn = []
                return self._open(self._loads.pop(batch))
            case act.GiveUp():
                raise self._error(outcome)
            case _:
                raise StopIteration

    def close(self) -> None:
        """End the workers; batches that were delivered stay valid."""
        if self.closed:
            return
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

    # -- inside ------------------------------------------------------------------------------------------------------

    def _take(self, arrival: Arrival, draw: Callable[[], Any]) -> None:
        event, load = arrival.event, arrival.load
        if isinstance(event, (ev.Result, ev.Failure)) and load is not None:
            if event.batch not in self._work:
                load.refuse()  # of an earlier epoch, or a second answer
                return
            self._loads[event.batch] = load
            del self._work[event.batch]
        elif isinstance(event, ev.Unready) and load is not None:
            self._unready[event.worker] = load
        self._pump(event, draw)

    def _pin_arrivals(self) -> None:
        if self._pinner is None:
            return
        arrivals = self.pool.arrivals
        for place, arrival in enumerate(arrivals):
            load = arrival.load
            if isinstance(arrival.event, ev.Result) and load is not None and not isinstance(load, PinnedLoad):
                arrivals[place] = Arrival(arrival.event, self._pinner.pin(load))

    def _pump(self, event: ev.Event, draw: Callable[[], Any]) -> None:
        """Feed an event to the machine and do what it says, until it says nothing more."""
        self._todo.extend(self._machine.handle(event))
        self._act(draw)

    def _act(self, draw: Callable[[], Any]) -> None:
        # an action leaves the list only when it is done: an exception that a signal handler raises in between must not
        # lose one. Each may be done twice.
        todo = self._todo
        failed: BaseException | None = None
        while todo:
            action = todo[0]
            match action:
                case act.Draw(batch):
                    answer: ev.Event = ev.Drew(batch)
                    try:
                        if batch not in self._work:
                            self._draw(batch, draw)
                    except StopIteration:
                        answer = ev.SamplerEnded()
                    except Exception as error:  # noqa: BLE001 - the sampler is user code; raised below
                        answer, failed = ev.SamplerEnded(), error
                    todo.popleft()
                    todo.extendleft(reversed(self._machine.handle(answer)))
                    if batch not in self._machine.ledger.entries:
                        self._work.pop(batch, None)
                    continue
                case act.Send(worker, batch):
                    if batch in self._work:
                        self.pool.send(worker, self._work[batch])
                case act.Start(worker):
                    self.pool.start(worker)
                case act.Stop(worker, reason):
                    self.pool.stop(worker, reason)
                case act.Drop(batch):
                    self._work.pop(batch, None)
                    load = self._loads.pop(batch, None)
                    if load is not None:
                        load.refuse()
                case act.Deliver() | act.End() | act.GiveUp():
                    self._outcome = action
                case act.Warn():
                    pass
            todo.popleft()
        if failed is not None:
            raise failed

    def _draw(self, batch: int, draw: Callable[[], Any]) -> None:
        index = draw()
        self._work[batch] = Work(batch, batch - self._first_of_epoch, index)
        if self._delivered == 0:
            self._drawn.append(index)

    def _open(self, load: Load) -> Any:
        try:
            return load.open(copy=self.pool.held() >= MOST_HELD)
        except StopIteration as error:
            # let through, it would end the epoch early without a word
            raise RuntimeError("the dataset raised StopIteration while making a batch") from error

    def _error(self, outcome: act.GiveUp) -> BaseException:
        if outcome.reason is Reason.TIMED_OUT:
            return LoaderTimeoutError(f"DataLoader timed out after {self._timeout:g} seconds")
        worker = outcome.worker if outcome.worker is not None else 0
        if outcome.reason is Reason.UNREADY:
            return self._preparing_failed(self._unready.pop(worker))
        story = self.pool.story(worker)
        self.close()
        return WorkerDiedError(f"{story}; {outcome.reason.value}")

    def _preparing_failed(self, load: Load) -> BaseException:
        self.close()
        try:
            load.open(copy=True)
        except BaseException as error:  # noqa: BLE001 - opening a failure raises it
            # nothing was delivered yet, so all that was drawn can be drawn again
            if getattr(load, "loading", False) and self._delivered == 0:
                return CannotLoad(error, self._drawn)
            return error
        raise AssertionError("a failure that does not raise")
