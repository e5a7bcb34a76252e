"""The interface between the driver and a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from unjam.loader.engine.actions import Reason
from unjam.loader.engine.events import Event
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.loader.worker.job import SampleFailure
from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.progress import WorkerPosition
from unjam.system.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Question:
    """A worker asks what to do about a failed sample, and waits. The driver answers, not the engine."""

    worker: int
    batch: int
    failure: SampleFailure


PoolEvent = Event | Question


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker's process ended and what it was doing.

    `stack`: what its fault handler wrote on a fatal signal. `memory`: evidence that the system
    killed it for memory. `stop_reason`: why unjam stopped it, if it did.
    """

    worker: int
    pid: int | None
    code: int | None
    heartbeat: Heartbeat
    stack: str = ""
    memory: str = ""
    said_goodbye: bool = False
    stop_reason: Reason | None = None
    # the node that it ran on, if that is not this machine; and why that is gone, if it is
    node: str = ""
    node_lost: str = ""


class Pool(Protocol):
    """Workers of any kind, by number. No method waits without a time limit."""

    def start(self, workers: list[int], positions: Mapping[int, WorkerPosition]) -> None:
        """Start these workers in parallel, for the first time or after their deaths, each from its position."""

    def send(self, worker: int, request: BatchRequest) -> None:
        """Send a worker a batch to make; never blocks."""

    def begin_epoch(self, shared_seed: int | None, epoch: int) -> None:
        """Tell the living workers that a new epoch begins."""

    def stop(self, worker: int, reason: Reason) -> None:
        """Stop a worker; its death comes as an event."""

    closed: bool
    # oldest first; the driver takes them from the left
    arrivals: deque[PoolEvent]
    # the workers' processes on this machine
    processes: list[Any]
    # nanoseconds that it took to make the pool: sending the dataset, starting the server
    made_in: int

    def wait(self, seconds: float) -> None:
        """Add new events to `arrivals`; wait at most `seconds` for the first."""

    def answer(self, worker: int, decision: str) -> None:
        """Answer a worker's question."""

    def continue_worker(self, worker: int) -> None:
        """Send SIGCONT."""

    def last_exit(self, worker: int) -> WorkerExit | None:
        """What is known about a worker's last exit."""

    def heartbeat(self, worker: int) -> Heartbeat | None:
        """A worker's last heartbeat."""

    def pid(self, worker: int) -> int | None:
        """A living worker's process id."""

    def suspended(self, worker: int) -> bool:
        """Whether a worker's process is stopped (SIGSTOP)."""

    def stack(self, worker: int) -> str:
        """Every thread's Python stack of a worker, taken without its cooperation."""

    def waits_for(self, worker: int) -> Waiting:
        """What a worker's main thread waits for at this moment."""

    def is_here(self, worker: int) -> bool:
        """Whether a worker's process runs on this machine."""
        del worker
        return True

    def sample_stack(self, turn: int) -> tuple[Stage, str] | None:
        """A worker's stage and stack, another worker at each turn; None if it is idle. Called from the profiler's thread."""
        del turn
        return None

    def started_in(self) -> int:
        """Nanoseconds until the first worker was ready, without its initialisation."""

    def memory(self) -> tuple[int, int]:
        """Bytes in the workers' slots, and how many of them are in use."""

    def held(self) -> int:
        """How many batches in recycled memory the consumer holds."""

    def close(self) -> None:
        """End every worker, within the time limits of NOTE [ Stopping ]."""
