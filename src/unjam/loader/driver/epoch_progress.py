"""What the consumer has received of an epoch: enough to resume exactly there.

Batches that were only prefetched do not count. Plain data without a reference to the iterator, so it
outlives an iterator that the program drops in the middle of an epoch.
"""

from __future__ import annotations

import array
import zlib
from dataclasses import dataclass, field
from typing import Any

from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.progress import WorkerPosition


@dataclass(slots=True)
class EpochProgress:
    """The position in an epoch.

    epoch: its number, from 1. batches: how many the consumer received. position: how many of the sampler's batches are
    finished, delivered or not. finished_ahead: numbers beyond `position` that are finished too, without `in_order`.
    indices_checksum: of the indices up to `position`. worker_positions: each worker's, after its last delivered batch.
    seed: torch's base seed of the workers; `seeded`: it was drawn in this epoch.
    sampler_was_asked: for indices. generators_at_start: their states when the epoch began. sampler_iterations: how often
    the sampler had been asked for an iterator by then. keeps_workers: the workers stay for the next epoch.
    spares: the last indices before the position where a resumed run begins, for `on_error="replace"`.
    """

    epoch: int = 0
    batches: int = 0
    position: int = 0
    finished_ahead: dict[int, tuple[int, Any]] = field(default_factory=dict)
    indices_checksum: int = 0
    sampler_state: Any = None
    worker_positions: dict[int, WorkerPosition] = field(default_factory=dict)
    last_worker: int = -1
    workers: int = 0
    seed: int = 0
    seeded: bool = True
    sampler_was_asked: bool = False
    generators_at_start: dict[str, bytes] = field(default_factory=dict)
    sampler_iterations: int = 1
    keeps_workers: bool = False
    finished: bool = False
    spares: tuple[Any, ...] = ()

    def finish_batch(self, request: BatchRequest, *, delivered: bool) -> None:
        """Note that a batch is finished; `delivered`: the consumer received it. A second call for a batch does nothing."""
        if request.number < self.position or request.number in self.finished_ahead:
            return
        self.batches += delivered
        self.finished_ahead[request.number] = (request.indices_checksum, request.sampler_state)
        while self.position in self.finished_ahead:
            self.indices_checksum, self.sampler_state = self.finished_ahead.pop(self.position)
            self.position += 1

    def drew_again(self, request: BatchRequest) -> None:
        """Complete what is known about a batch that was finished, out of order, before the run resumed."""
        if request.number in self.finished_ahead:
            self.finished_ahead[request.number] = (request.indices_checksum, request.sampler_state)
        elif request.number + 1 == self.position:
            self.indices_checksum, self.sampler_state = request.indices_checksum, request.sampler_state

    def made_by(self, worker: int, position: WorkerPosition) -> None:
        """Note which worker made the finished batch, and its position after it."""
        self.last_worker = worker
        self.worker_positions[worker] = position

    def end(self, worker_positions: dict[int, WorkerPosition]) -> None:
        """End the epoch; `worker_positions`: of the workers that stay."""
        self.finished = True
        self.worker_positions = worker_positions


class WorkerPositions:
    """The positions of an epoch's workers: after their last batch that arrived, and after each batch that waits for the consumer.

    `arrived`: where a replacement of each worker starts.
    """

    def __init__(self) -> None:
        self.progress = EpochProgress()
        self.arrived: dict[int, WorkerPosition] = {}
        self._waiting: dict[int, tuple[int, WorkerPosition]] = {}

    def begin(self, progress: EpochProgress, *, first: bool) -> None:
        """Begin an epoch; unless it is the first one, the workers have stayed."""
        if first:
            self.arrived = dict(progress.worker_positions)
        else:
            self.arrived = {worker: position.in_next_epoch() for worker, position in self.arrived.items()}
            progress.worker_positions = dict(self.arrived)
        self.progress = progress
        self._waiting.clear()

    def batch_arrived(self, worker: int, batch: int, update: bytes) -> None:
        """Note that a batch has arrived."""
        position = self.arrived.get(worker, WorkerPosition()).after(update)
        self.arrived[worker] = position
        self._waiting[batch] = (worker, position)

    def ended(self, worker: int, update: bytes) -> None:
        """Note that a worker's stream has ended."""
        self.arrived[worker] = self.arrived.get(worker, WorkerPosition()).after(update)
        self._pass_on_end(worker)

    def delivered(self, batch: int) -> None:
        """Note that the consumer received a batch."""
        worker, position = self._waiting.pop(batch, (-1, None))
        if position is not None:
            self.progress.made_by(worker, position)
            self._pass_on_end(worker)

    def drop(self, batch: int) -> None:
        """Forget a batch that will not be delivered."""
        self._waiting.pop(batch, None)

    def _pass_on_end(self, worker: int) -> None:
        """Record the end of a worker's stream once its last batch has been delivered."""
        position = self.arrived[worker]
        if position.ended and all(one != worker for one, _ in self._waiting.values()):
            self.progress.worker_positions[worker] = position


class CannotRebuild(Exception):
    """A worker could not rebuild the dataset that it was sent.

    `drawn`: the requests already drawn from the sampler. `progress`: where the epoch began.
    """

    def __init__(self, error: BaseException, drawn: list[BatchRequest], progress: EpochProgress) -> None:
        super().__init__(str(error))
        self.error = error
        self.drawn = drawn
        self.progress = progress


def checksum(indices: tuple[Any, ...], before: int) -> int:
    """Return the checksum of indices after others; the same in every process."""
    try:
        data = array.array("q", indices).tobytes()
    except (TypeError, OverflowError):
        data = repr(indices).encode("utf-8", "backslashreplace")
    return zlib.crc32(data, before)
