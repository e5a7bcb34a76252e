"""The loader's settings that the engine needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Config:
    """The loader's settings that the engine needs."""

    workers: int
    depth: int
    in_order: bool = True
    iterable: bool = False
    keeps_workers: bool = False
    budget: int | None = None
    restarts: bool = True
    blame_after: int = 2
    max_restarts: int = 1000
    # Deaths in a row before a worker's first sample, after which we give up: for a worker that was
    # never ready, and for a replacement of one that was, or one whose machine went away.
    failed_starts_at_first: int = 3
    failed_starts_later: int = 10
    continue_most: int = 3

    @property
    def most_in_flight(self) -> int:
        """The most batches between sampler and consumer."""
        return max(1, self.depth * self.workers)
