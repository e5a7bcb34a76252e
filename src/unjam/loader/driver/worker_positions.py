"""Where each worker stands: after its last batch that arrived, and after each batch that waits for the consumer."""

from __future__ import annotations

from unjam.loader.driver.delivered import Delivered
from unjam.loader.worker.progress import WorkerPosition


class WorkerPositions:
    """The positions of an epoch's workers. `arrived`: what a replacement of each worker starts from."""

    def __init__(self) -> None:
        self.progress = Delivered()
        self.arrived: dict[int, WorkerPosition] = {}
        self._waiting: dict[int, tuple[int, WorkerPosition]] = {}

    def begin(self, progress: Delivered, *, first: bool) -> None:
        """Begin an epoch; unless it is the first one, its workers have stayed."""
        if first:
            self.arrived = dict(progress.worker_positions)
        else:
            self.arrived = {worker: position.in_next_epoch() for worker, position in self.arrived.items()}
            progress.worker_positions = dict(self.arrived)
        self.progress = progress
        self._waiting.clear()

    def came(self, worker: int, batch: int, update: bytes) -> None:
        """A batch arrived."""
        position = self.arrived.get(worker, WorkerPosition()).after(update)
        self.arrived[worker] = position
        self._waiting[batch] = (worker, position)

    def ended(self, worker: int, update: bytes) -> None:
        """A worker's stream has ended."""
        self.arrived[worker] = self.arrived.get(worker, WorkerPosition()).after(update)
        self._pass_on_end(worker)

    def delivered(self, batch: int) -> None:
        """The consumer got a batch."""
        worker, position = self._waiting.pop(batch, (-1, None))
        if position is not None:
            self.progress.made_by(worker, position)
            self._pass_on_end(worker)

    def drop(self, batch: int) -> None:
        """A batch is not delivered."""
        self._waiting.pop(batch, None)

    def _pass_on_end(self, worker: int) -> None:
        """A stream has ended for the consumer when it has got all of its batches."""
        position = self.arrived[worker]
        if position.ended and all(one != worker for one, _ in self._waiting.values()):
            self.progress.worker_positions[worker] = position
