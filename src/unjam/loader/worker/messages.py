"""Messages between a parent and its worker: small frozen classes.

User data is sent beside them, as the frame's raw data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from unjam.loader.ship.process_state import ProcessState
from unjam.loader.ship.shipping import Manifest
from unjam.loader.transport.slots import Filling
from unjam.loader.transport.unpacking import BufferAt
from unjam.loader.worker.spec import WorkerSpec

# -- parent to worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first frame. `home` and `manifest` are None for a worker forked from the parent.

    Descriptors: the status page and the memory for stacks. With a manifest: the payload, then the
    parent's resource tracker if `has_tracker`, then the descriptors that the payload refers to.
    `adopted`: forked by unjam's own fork server or a template.
    """

    spec: WorkerSpec
    home: ProcessState | None
    manifest: Manifest | None
    has_tracker: bool
    adopted: bool


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Descriptors that do not fit into one frame; the next frame carries the rest."""


@dataclass(frozen=True, slots=True)
class Task:
    """Make `batch`, which has number `number` in its epoch.

    The frame's data holds its indices, and the spares if `with_spares`. `decisions`: by position,
    the decision about samples that killed a worker; see `Job`. `seed`: seed of this batch.
    """

    batch: int
    number: int
    with_spares: bool = False
    decisions: dict[int, str] | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """A new epoch begins on a worker that stayed alive."""

    shared_seed: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The answer to `PolicyQuestion`."""

    decision: str


@dataclass(frozen=True, slots=True)
class Carry:
    """The parent cannot map this slot: send its bytes through the channel."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell the worker to exit."""


# -- worker to parent --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """The worker has its dataset.

    `at`: when, on the monotonic clock. `initialised`: how long initialisation took. Nanoseconds.
    """

    at: int
    initialised: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The worker read samples of its stream again, to come to where it was."""

    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Imported:
    """Installed modules that the worker had to import; the frame's data has their names."""


@dataclass(frozen=True, slots=True)
class NewSlot:
    """The worker made a slot; its descriptor comes with the frame."""

    slot: int
    size: int


@dataclass(frozen=True, slots=True)
class BatchMade:
    """A packed batch. If it has no slot, its bytes are the frame's data.

    `times`: the job's stamps. `failures`: the job's failures. `news`: see `WorkerMark`. All are bytes,
    decoded only on demand.
    """

    batch: int
    stream: bytes
    stream_at: tuple[int, int] | None
    buffers: tuple[BufferAt, ...]
    filling: Filling | None
    retired: tuple[int, ...]
    samples: int
    times: bytes
    failures: bytes
    profile: bytes = b""
    news: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes in the slot plus the length of the pickle stream."""
        return (self.filling.used if self.filling else 0) + len(self.stream)

    def without_slot(self) -> BatchMade:
        """Return a copy for bytes that came through the channel."""
        return replace(self, filling=None, retired=())


@dataclass(frozen=True, slots=True)
class Carried:
    """The bytes of a slot that the parent could not map are the frame's data."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class BatchRaised:
    """User code raised while making `batch` (None: while preparing); the policy is to raise.

    The frame's data holds the failures; the last one is raised. `loading`: the failure came while
    the worker was loading, e.g. the parent could pickle the dataset but the worker cannot unpickle
    it.
    """

    batch: int | None
    loading: bool
    news: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchEmpty:
    """Every sample of `batch` failed and was skipped; the failures are the frame's data."""

    batch: int
    news: bytes = b""


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """Ask what to do about the failure in the frame's data; wait for a `PolicyAnswer`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The worker's iterable ended before `batch`.

    The frame's data holds failures since the last batch. `cut_short`: it ended right after a sample
    that failed, as a generator does.
    """

    batch: int
    cut_short: bool
    news: bytes = b""


@dataclass(frozen=True, slots=True)
class WarnOnce:
    """A warning for the user that is not a failure; the text is the frame's data."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker exits because it was told to."""


# every message between a parent and its worker
LANGUAGE = (
    Begin,
    Descriptors,
    Task,
    Resume,
    PolicyAnswer,
    Carry,
    Leave,
    Prepared,
    Skipped,
    Imported,
    WarnOnce,
    NewSlot,
    BatchMade,
    Carried,
    BatchRaised,
    BatchEmpty,
    PolicyQuestion,
    Drained,
    Leaving,
)
