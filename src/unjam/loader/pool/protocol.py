"""The interface between the driver and a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from unjam.loader.engine.actions import Reason
from unjam.loader.engine.events import Event
from unjam.loader.transport.status_page import Heartbeat
from unjam.loader.worker.job import Failed, failures_from
from unjam.loader.worker.progress import WorkerMark
from unjam.system.waiting import Waiting


@dataclass(slots=True)
class Facts:
    """What is known of a batch without opening it. `told` or `listed`: the failures in it."""

    samples: int = 0
    nbytes: int = 0
    times: bytes = b""
    told: bytes = b""
    listed: list[Failed] | None = None
    profile: bytes = b""
    news: bytes = b""  # see `WorkerMark`

    def failures(self) -> list[Failed]:
        """Return the failures."""
        return self.listed or failures_from(self.told)


class BatchResult(Protocol):
    """A batch that has arrived, or a failed batch: it `raises` its last failure or is `empty`.

    `loading`: the failure is that a worker could not rebuild the dataset.
    """

    raises: bool
    empty: bool
    loading: bool

    @property
    def facts(self) -> Facts:
        """What is known without opening it."""

    def open(self, *, copy: bool) -> Any:
        """Return the batch. `copy`: do not use recycled memory."""

    def refuse(self) -> None:
        """Give its memory back unopened."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A worker asks about a failed sample and waits. The driver answers, not the engine."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An event in a pool. `result`: the batch, or the failures that belong to the event."""

    event: Event | Asked
    result: BatchResult | None = None


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker's process ended and what it was doing.

    `stack`: what its fault handler wrote on a fatal signal. `memory`: evidence that the system
    killed it for memory.
    """

    worker: int
    pid: int | None
    code: int | None
    heartbeat: Heartbeat
    stack: str = ""
    memory: str = ""
    said_goodbye: bool = False
    # the node that it ran on, if that is not this machine; and why that is gone, if it is
    node: str = ""
    node_lost: str = ""


@dataclass(slots=True)
class Work:
    """One batch to make: its number over all epochs, its number in this epoch, its indices.

    `index`: what the sampler returned. `indices`: the samples' indices, copied when they were
    drawn. `packed`: the pickled index of the first send. Samplers may reuse their lists, and a
    batch that is made a second time must be the same batch.
    """

    batch: int
    number: int
    index: Any
    indices: tuple[Any, ...] = ()
    batched: bool = True
    spares: tuple[Any, ...] = ()
    # checksum of all indices up to these, and the sampler's own state after it gave them
    drawn: int = 0
    sampler_state: Any = None
    # seed for the random numbers of this batch; None: do not seed
    seed: int | None = None
    packed: bytes | None = None
    # pid of the worker that it was sent to
    sent_to: int | None = None
    # by position: the decision about samples that killed a worker
    decisions: dict[int, str] = field(default_factory=dict)


class Pool(Protocol):
    """Workers of any kind, by number. No method waits without a time limit."""

    def start(self, workers: list[int], marks: Mapping[int, WorkerMark]) -> None:
        """Start these workers in parallel, for the first time or after their deaths; each goes on at its mark."""

    def send(self, worker: int, work: Work) -> None:
        """Send a worker a batch to make; never blocks."""

    def resume(self, shared_seed: int | None, epoch: int) -> None:
        """Tell the living workers that a new epoch begins."""

    def stop(self, worker: int, reason: Reason) -> None:
        """Stop a worker; its death comes as an event."""

    # events, oldest first; the driver takes them from the left
    arrivals: deque[Arrival]

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

    def started_in(self) -> int:
        """Nanoseconds until the first worker was ready, without its initialisation."""

    def memory(self) -> tuple[int, int]:
        """Bytes in the workers' slots, and how many of them are in use."""

    def held(self) -> int:
        """How many batches in recycled memory the consumer holds."""

    def close(self) -> None:
        """End every worker, within the time limits of NOTE [ Stopping ]."""
