"""What the driver needs of a pool."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Work:
    """One batch to make: its number for ever, its number in this epoch, and its indices."""

    batch: int
    number: int
    index: Any


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

    def wait(self, seconds: float) -> list[Arrival]:
        """What happened, waiting at most `seconds` for the first thing."""

    def story(self, worker: int) -> str:
        """What is known of a worker's end, for a message."""

    def held(self) -> int:
        """How many batches over recycled memory the consumer refers to."""

    def close(self) -> None:
        """End every worker, within the bounds of NOTE [ Stopping ]."""
