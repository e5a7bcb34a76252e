"""What a parent and its worker say to each other. Small frozen classes; what the user made travels beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unjam.loader.ship.process_state import World
from unjam.loader.ship.shipping import Manifest
from unjam.loader.transport.slots import Filling
from unjam.loader.transport.unpacking import BufferAt
from unjam.loader.worker.spec import WorkerSpec

# -- parent to worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first frame: who the worker is. `home` and `manifest` are None for a worker forked from the parent.

    Descriptors: the shared page, the memory for stacks, then, where there is a manifest, the payload, and the parent's
    resource tracker if `has_tracker`, then those that the payload refers to. `adopted`: born of unjam's own fork server.
    """

    spec: WorkerSpec
    home: World | None
    manifest: Manifest | None
    has_tracker: bool
    adopted: bool


@dataclass(frozen=True, slots=True)
class Descriptors:
    """More descriptors than one frame can carry; those of the next frame belong to them."""


@dataclass(frozen=True, slots=True)
class Task:
    """Make `batch`, which is number `number` of its epoch; its indices are the frame's data, with spares if it says so.

    `verdicts`: by position, what was decided about samples that ended a worker; see `Job`. `seed`: the batch's own.
    """

    batch: int
    number: int
    with_spares: bool = False
    verdicts: dict[int, str] | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """A new epoch begins on a worker that stayed alive."""

    shared_seed: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to `Asks`."""

    decision: str


@dataclass(frozen=True, slots=True)
class Carry:
    """The parent cannot map this slot: send its bytes through the channel."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """End."""


# -- worker to parent --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """The worker has its dataset. `at`: when, on the machine's clock; `initialised`: what user code took of it; nanoseconds."""

    at: int
    initialised: int


@dataclass(frozen=True, slots=True)
class Imported:
    """The worker had to import installed modules itself; their names, in order, are the frame's data."""


@dataclass(frozen=True, slots=True)
class NewSlot:
    """The worker made a slot; its descriptor comes with the frame."""

    slot: int
    size: int


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, packed. Where no slot carries its bytes they are the frame's data.

    `times` are the job's stamps, `failures` what failed on the way; both as bytes, read when somebody wants to know.
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

    @property
    def nbytes(self) -> int:
        """What the batch occupies in its slot."""
        return (self.filling.used if self.filling else 0) + len(self.stream)

    def without_slot(self) -> Made:
        """The same for bytes that came through the channel."""
        return replace(self, filling=None, retired=())


@dataclass(frozen=True, slots=True)
class Carried:
    """The bytes of a slot that the parent could not map are the frame's data."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised while making `batch` (None: while preparing), and the policy says that it is to be raised.

    The failures are the frame's data, the one to be raised last. `loading`: the dataset could be pickled over there but
    not unpickled here.
    """

    batch: int | None
    loading: bool


@dataclass(frozen=True, slots=True)
class Emptied:
    """Every sample of `batch` failed and was skipped; the failures are the frame's data."""

    batch: int


@dataclass(frozen=True, slots=True)
class Asks:
    """What is to be done about a failure, which is the frame's data? The worker waits for a `Verdict`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The worker's iterable ended before `batch`; failures since the last batch are the frame's data.

    `cut_short`: it ended right after a sample that failed, as a generator does.
    """

    batch: int
    cut_short: bool


@dataclass(frozen=True, slots=True)
class Mentions:
    """Something that the user should know and that is no failure; the text is the frame's data."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """The worker ends because it was asked to."""


# every message between a parent and its worker
LANGUAGE = (
    Begin,
    Descriptors,
    Task,
    Resume,
    Verdict,
    Carry,
    Leave,
    Prepared,
    Imported,
    Mentions,
    NewSlot,
    Made,
    Carried,
    Raised,
    Emptied,
    Asks,
    Drained,
    Farewell,
)
