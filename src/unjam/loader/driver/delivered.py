"""What the consumer has got of an epoch: enough to go on exactly there.

Batches that were only prefetched do not count. Plain data: it has no reference to the iterator, so it
outlives one that the program drops in the middle of an epoch.
"""

from __future__ import annotations

import array
import zlib
from dataclasses import dataclass, field
from typing import Any

from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.progress import WorkerPosition


@dataclass(slots=True)
class Delivered:
    """Where an epoch stands.

    epoch: its number, from 1. batches: how many the consumer got. position: how many of the sampler's batches are
    done with, delivered or not. ahead: numbers beyond `position` that are done with too, without `in_order`.
    drawn: checksum of the indices up to `position`. worker_positions: of each worker, after its last batch that was delivered.
    seed: torch's base seed of the workers; `seeded`: it was drawn in this epoch.
    drew: the sampler was asked for indices. begin: states of the generators when the epoch began. begun: how often the
    sampler was asked for an iterator then.
    keeps_workers: they go on in the next epoch.
    """

    epoch: int = 0
    batches: int = 0
    position: int = 0
    ahead: dict[int, tuple[int, Any]] = field(default_factory=dict)
    drawn: int = 0
    sampler_state: Any = None
    worker_positions: dict[int, WorkerPosition] = field(default_factory=dict)
    last_worker: int = -1
    workers: int = 0
    seed: int = 0
    seeded: bool = True
    drew: bool = False
    begin: dict[str, bytes] = field(default_factory=dict)
    begun: int = 1
    keeps_workers: bool = False
    finished: bool = False

    def done(self, request: BatchRequest, *, delivered: bool) -> None:
        """A batch is done with; `delivered`: the consumer got it. A second call for a batch does nothing."""
        if request.number < self.position or request.number in self.ahead:
            return
        self.batches += delivered
        self.ahead[request.number] = (request.drawn, request.sampler_state)
        while self.position in self.ahead:
            self.drawn, self.sampler_state = self.ahead.pop(self.position)
            self.position += 1

    def made_by(self, worker: int, position_there: WorkerPosition) -> None:
        """The batch that is done with came from this worker, which stood here after it."""
        self.last_worker = worker
        self.worker_positions[worker] = position_there

    def end(self, worker_positions: dict[int, WorkerPosition]) -> None:
        """The epoch is over; `worker_positions`: where its workers stand, if they stay."""
        self.finished = True
        self.worker_positions = worker_positions


class CannotLoad(Exception):
    """A worker could not rebuild the dataset that it was sent.

    `drawn`: the indices that were already drawn from the sampler. `progress`: where the epoch began.
    """

    def __init__(self, error: BaseException, drawn: list[Any], progress: Delivered) -> None:
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
