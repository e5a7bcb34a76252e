"""Messages between a parent and its worker: small dataclasses. User data travels as the frame's raw data."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from unjam.loader.ship.process_state import ProcessState
from unjam.loader.ship.shipping import Manifest
from unjam.loader.transport.channel import NOT_SENT, sent_fields
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker.spec import WorkerSpec

# -- parent to worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message.

    `process_state`: None for a worker forked from the parent. `manifest`: None if the worker has its input already.

    Descriptors: the status page and the memory for stacks. With a manifest: the payload, then the
    parent's resource tracker if `has_tracker`, then the descriptors that the payload refers to.
    `from_fork_server`: forked by unjam's own fork server or a template.
    """

    spec: WorkerSpec
    process_state: ProcessState | None
    manifest: Manifest | None
    has_tracker: bool
    from_fork_server: bool


@dataclass(slots=True)
class BatchRequest:
    """One batch to make: its number over all epochs and its number in this epoch.

    What the worker gets: `packed`, the pickled index and spares; `decisions`, by position, about samples that killed a
    worker; `seed` for the random numbers of this batch (None: do not seed).

    What only the training process needs: `index`, what the sampler returned; `indices` of the samples, copied when they
    were drawn, because samplers may reuse their lists and a batch that is made a second time must be the same batch;
    `spares` that may replace a failed sample; `indices_checksum`, of all indices up to these; the sampler's own state
    after it gave them; `sent_to`, the process id of the worker.
    """

    batch: int
    number: int
    packed: bytes = b""
    decisions: dict[int, str] = field(default_factory=dict)
    seed: int | None = None
    index: Any = field(default=None, metadata=NOT_SENT)
    indices: tuple[Any, ...] = field(default=(), metadata=NOT_SENT)
    spares: tuple[Any, ...] = field(default=(), metadata=NOT_SENT)
    indices_checksum: int = field(default=0, metadata=NOT_SENT)
    sampler_state: Any = field(default=None, metadata=NOT_SENT)
    sent_to: int | None = field(default=None, metadata=NOT_SENT)

    def pack(self) -> None:
        """Pickle the index and the spares, once. They are nearly always numbers; others may have a class of `__main__`."""
        if not self.packed:
            index = self.index
            plain = not self.spares and (type(index) is int or (type(index) is list and set(map(type, index)) == {int}))
            self.packed = (pickle if plain else cloudpickle).dumps((index, self.spares), pickle.HIGHEST_PROTOCOL)

    def __reduce__(self) -> Any:
        # to an agent on another node
        return BatchRequest, tuple(getattr(self, name) for name in sent_fields(BatchRequest))


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """A new epoch begins on a worker that stayed alive."""

    shared_seed: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The answer to `PolicyQuestion`."""

    decision: str


@dataclass(frozen=True, slots=True)
class SendSlotBytes:
    """The parent cannot map this slot: send its bytes through the channel."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell the worker to exit."""


# -- worker to parent --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its dataset.

    `at`: when, on the monotonic clock. `initialised`: how long initialisation took. Nanoseconds.
    """

    at: int
    initialised: int


@dataclass(frozen=True, slots=True)
class Reread:
    """The worker read samples of its stream again to reach its position."""

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
class SlotBytes:
    """The bytes of a slot that the parent could not map are the frame's data."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """User code raised while making `batch` (None: while preparing); the policy is to raise.

    The frame's data holds the failures; the last one is raised. `while_loading`: the failure came while
    the worker was loading, e.g. the parent could pickle the dataset but the worker cannot unpickle
    it.
    """

    batch: int | None
    while_loading: bool
    position_update: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchEmpty:
    """Every sample of `batch` failed and was skipped; the failures are the frame's data."""

    batch: int
    position_update: bytes = b""


@dataclass(frozen=True, slots=True)
class PolicyQuestion:
    """Ask what to do about the failure in the frame's data; wait for a `PolicyAnswer`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The worker's iterable ended before `batch`.

    The frame's data holds failures since the last batch. `cut_short`: it ended right after a sample
    that failed, as a generator does.
    """

    batch: int
    cut_short: bool
    position_update: bytes = b""


@dataclass(frozen=True, slots=True)
class WarnOnce:
    """A warning for the user that is not a failure; the text is the frame's data."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The worker exits as requested."""


# every message between a parent and its worker
MESSAGE_TYPES = (
    Setup,
    BatchRequest,
    BeginEpoch,
    PolicyAnswer,
    SendSlotBytes,
    Leave,
    Ready,
    Reread,
    Imported,
    WarnOnce,
    NewSlot,
    PackedBatch,
    SlotBytes,
    BatchFailed,
    BatchEmpty,
    PolicyQuestion,
    Exhausted,
    Goodbye,
)
