"""What the driver needs of a pool."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from unjam.loader.engine.actions import Reason
from unjam.loader.engine.events import Event
from unjam.loader.transport.status_page import Beat
from unjam.loader.worker.job import Failed, failures_from


@dataclass(slots=True)
class Facts:
    """What is known of a load without opening it: `told` or `listed` are the failures on the way to it."""

    samples: int = 0
    nbytes: int = 0
    times: bytes = b""
    told: bytes = b""
    listed: list[Failed] | None = None
    profile: bytes = b""

    def failures(self) -> list[Failed]:
        """What failed."""
        return self.listed or failures_from(self.told)


class Load(Protocol):
    """A batch that has arrived, or the reason why there is none: `raises` its last failure, or is `empty`.

    `loading`: the failure is that a worker could not rebuild the dataset.
    """

    raises: bool
    empty: bool
    loading: bool

    @property
    def facts(self) -> Facts:
        """What is known of it."""

    def open(self, *, copy: bool) -> Any:
        """The batch itself. `copy`: not over recycled memory."""

    def refuse(self) -> None:
        """Nobody wants it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A worker wants to know what to do about a failed sample, and waits. Not the engine's business."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """Something that happened in a pool; `load` comes with a result, a failure or a question."""

    event: Event | Asked
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker's process ended and what it was doing.

    `stack`: what it wrote when a fatal signal hit it. `memory`: what speaks for the system having killed it for memory.
    """

    worker: int
    pid: int | None
    code: int | None
    beat: Beat
    stack: str = ""
    memory: str = ""
    farewell: bool = False


@dataclass(slots=True)
class Work:
    """One batch to make: its number for ever, its number in this epoch, and what the sampler gave for it.

    `indices` are the samples' as they were when they were drawn. `packed` are the indices as they were when they were first sent: samplers use their lists again, and a batch that is
    made a second time must be the same batch.
    """

    batch: int
    number: int
    index: Any
    indices: tuple[Any, ...] = ()
    batched: bool = True
    spares: tuple[Any, ...] = ()
    # what to seed the random numbers with before it is made; None: they go on where they were
    seed: int | None = None
    packed: bytes | None = None
    # the process that has it
    sent_to: int | None = None
    # by position: what was decided about samples that ended a worker
    verdicts: dict[int, str] = field(default_factory=dict)


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

    def answer(self, worker: int, decision: str) -> None:
        """Tell a worker that asked."""

    def let_go_on(self, worker: int) -> None:
        """SIGCONT."""

    def ending(self, worker: int) -> Ending | None:
        """What is known of a worker's last end."""

    def beat(self, worker: int) -> Beat | None:
        """A worker's last sign of life."""

    def pid(self, worker: int) -> int | None:
        """A living worker's process."""

    def suspended(self, worker: int) -> bool:
        """Whether somebody stopped a worker's process (SIGSTOP)."""

    def stack(self, worker: int) -> str:
        """Where a worker is: every thread's Python stack, taken without its help."""

    def started_in(self) -> int:
        """Nanoseconds from the wish for workers until one had its dataset, without what user code took of it."""

    def memory(self) -> tuple[int, int]:
        """Bytes that the workers' slots span, and bytes of them in use."""

    def held(self) -> int:
        """How many batches over recycled memory the consumer refers to."""

    def close(self) -> None:
        """End every worker, within the bounds of NOTE [ Stopping ]."""
