"""What a machine needs to know of its loader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """What a machine needs to know of its loader."""

    workers: int
    depth: int
    in_order: bool = True
    iterable: bool = False
    keeps_workers: bool = False
    budget: int | None = None
    restarts: bool = True
    convict_after: int = 2
    max_restarts: int = 1000
    # ends in a row before the first sample: of a worker that never was ready, of one that was and is being replaced
    unborn_at_first: int = 3
    unborn_later: int = 10
    continue_most: int = 3

    @property
    def most_in_flight(self) -> int:
        """The most batches between sampler and consumer."""
        return max(1, self.depth * self.workers)
