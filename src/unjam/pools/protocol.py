"""What the driver needs of a pool."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from unjam.engine.actions import Reason
from unjam.engine.events import Event


class Load(Protocol):
    """A batch that has arrived, or the exception in its place."""

    def open(self, *, copy: bool) -> Any:
        """The batch itself, or raise what was raised in its place. `copy`: not over recycled memory."""

    def refuse(self) -> None:
        """Nobody wants it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something that happened in a pool; `load` comes with a result or a failure."""

    event: Event
    load: Load | None = None


@dataclass(slots=True)
class Work:
    """One batch to make: its number for ever, its number in this epoch, and its indices.

    `packed` are the indices as they were when they were first sent: samplers use their lists again, and a batch that is
    made a second time must be the same batch.
    """

    batch: int
    number: int
    index: Any
    packed: bytes | None = None


class Pool(Protocol):
    """Workers of any kind, by number. No method waits without a bound."""

    def start(self, worker: int) -> None:
        """Start a worker, the first time or after its death."""

    def send(self, worker: int, work: Work) -> None:
        """Hand over a batch to make; never blocks."""

    def resume(self, shared_seed: int | None) -> None:
        """Tell the living workers that a new epoch begins."""

    def stop(self, worker: int, reason: Reason) -> None:
        """Ask a worker to leave; its death comes as an event."""

    # what happened, oldest first; the driver takes from the left
    arrivals: deque[Arrival]

    def wait(self, seconds: float) -> None:
        """Add to `arrivals` what happened, waiting at most `seconds` for the first thing."""

    def story(self, worker: int) -> str:
        """What is known of a worker's end, for a message."""

    def held(self) -> int:
        """How many batches over recycled memory the consumer refers to."""

    def close(self) -> None:
        """End every worker, within the bounds of NOTE [ Stopping ]."""
