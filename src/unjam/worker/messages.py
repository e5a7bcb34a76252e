"""What a parent and its worker say to each other. Small frozen classes; what the user made travels beside them."""

from __future__ import annotations

from dataclasses import dataclass

from unjam.transport.slots import Filling
from unjam.transport.unpacking import BufferAt

# -- parent to worker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Descriptors:
    """More descriptors than one frame can carry; those of the next frame belong to them."""


@dataclass(frozen=True, slots=True)
class Task:
    """Make `batch`, which is number `number` of its epoch; its indices are the frame's data."""

    batch: int
    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """A new epoch begins on a worker that stayed alive."""

    shared_seed: int | None


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
    """The worker has its dataset; `imported` are third-party packages it had to import itself."""

    imported: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewSlot:
    """The worker made a slot; its descriptor comes with the frame."""

    slot: int
    size: int


@dataclass(frozen=True, slots=True)
class Made:
    """A batch, packed. Where no slot carries its bytes they are the frame's data."""

    batch: int
    stream: bytes
    stream_at: tuple[int, int] | None
    buffers: tuple[BufferAt, ...]
    filling: Filling | None
    retired: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """What the batch occupies in its slot."""
        return (self.filling.used if self.filling else 0) + len(self.stream)


@dataclass(frozen=True, slots=True)
class Carried:
    """The bytes of a slot that the parent could not map are the frame's data."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised while making `batch` (None: while preparing); the exception is the frame's data.

    `loading`: the dataset could be pickled over there but not unpickled here.
    """

    batch: int | None
    loading: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """The worker's iterable ended before `batch`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Farewell:
    """The worker ends because it was asked to."""
