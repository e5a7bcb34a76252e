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
    max_restarts: int = 1000

    @property
    def most_in_flight(self) -> int:
        """The most batches between sampler and consumer."""
        return max(1, self.depth * self.workers)
