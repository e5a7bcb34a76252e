"""No workers: the batch is made in the training process when it is wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from unjam.engine import events as ev
from unjam.engine.actions import Reason
from unjam.pools.protocol import Arrival, Work
from unjam.worker.fetching import Fetcher, IterableEnded


class InlinePool:
    """One worker that is no process. What user code raises passes through untouched."""

    def __init__(self, make_fetcher: Callable[[], Fetcher]) -> None:
        self._fetcher = make_fetcher()
        self._work: deque[Work] = deque()
        self.arrivals: deque[Arrival] = deque()

    def start(self, worker: int) -> None:
        """See `Pool`."""

    def send(self, worker: int, work: Work) -> None:
        """See `Pool`."""
        del worker
        self._work.append(work)

    def resume(self, shared_seed: int | None) -> None:
        """See `Pool`."""

    def stop(self, worker: int, reason: Reason) -> None:
        """See `Pool`."""

    def wait(self, seconds: float) -> None:
        """Make the next batch, for as long as user code takes."""
        del seconds
        if self._work:
            self.arrivals.append(self._make(self._work.popleft()))

    def _make(self, work: Work) -> Arrival:
        try:
            data = self._fetcher.fetch(work.batch, work.index)
        except IterableEnded:
            return Arrival(ev.Exhausted(0, work.batch))
        except BaseException as error:  # noqa: BLE001 - it is raised again, as it is, in its place
            return Arrival(ev.Failure(0, work.batch), Thrown(error))
        return Arrival(ev.Result(0, work.batch), Plain(data))

    def story(self, worker: int) -> str:
        """See `Pool`."""
        return f"worker {worker} is this process"

    def held(self) -> int:
        """See `Pool`."""
        return 0

    def close(self) -> None:
        """See `Pool`."""
        self._work.clear()


class Plain:
    """A batch that never left the process."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def open(self, *, copy: bool) -> Any:
        """The batch."""
        del copy
        return self._data

    def refuse(self) -> None:
        """Nothing is held."""


class Thrown:
    """An exception that never left the process."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def open(self, *, copy: bool) -> Any:
        """Raise it, with its own traceback."""
        del copy
        error, self._error = self._error, RuntimeError("raised already")
        raise error

    def refuse(self) -> None:
        """Nothing is held."""
