"""Where each worker stands: after its last batch that arrived, and after each batch that waits for the consumer."""

from __future__ import annotations

from unjam.loader.driver.delivered import Delivered
from unjam.loader.worker.progress import WorkerMark


class WorkerMarks:
    """The marks of an epoch's workers. `arrived`: what a replacement of each worker starts from."""

    def __init__(self) -> None:
        self.progress = Delivered()
        self.arrived: dict[int, WorkerMark] = {}
        self._waiting: dict[int, tuple[int, WorkerMark]] = {}

    def begin(self, progress: Delivered, *, first: bool) -> None:
        """Begin an epoch; unless it is the first one, its workers have stayed."""
        if first:
            self.arrived = dict(progress.marks)
        else:
            self.arrived = {worker: mark.in_next_epoch() for worker, mark in self.arrived.items()}
            progress.marks = dict(self.arrived)
        self.progress = progress
        self._waiting.clear()

    def came(self, worker: int, batch: int, news: bytes) -> None:
        """A batch arrived."""
        mark = self.arrived.get(worker, WorkerMark()).after(news)
        self.arrived[worker] = mark
        self._waiting[batch] = (worker, mark)

    def ended(self, worker: int, news: bytes) -> None:
        """A worker's stream has ended."""
        self.arrived[worker] = self.arrived.get(worker, WorkerMark()).after(news)
        self._pass_on_end(worker)

    def delivered(self, batch: int) -> None:
        """The consumer got a batch."""
        worker, mark = self._waiting.pop(batch, (-1, None))
        if mark is not None:
            self.progress.made_by(worker, mark)
            self._pass_on_end(worker)

    def drop(self, batch: int) -> None:
        """A batch is not delivered."""
        self._waiting.pop(batch, None)

    def _pass_on_end(self, worker: int) -> None:
        """A stream has ended for the consumer when it has got all of its batches."""
        mark = self.arrived[worker]
        if mark.ended and all(one != worker for one, _ in self._waiting.values()):
            self.progress.marks[worker] = mark
