"""What can happen to a loader, as the engine sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cause(enum.Enum):
    """Why a worker's process is gone, as far as the decision about it depends on that."""

    UNKNOWN = "a signal or an exit"
    MEMORY = "killed for memory"
    SILENT = "unjam stopped it: the sample took too long"
    SUSPENDED = "unjam stopped it: something had suspended it"


@dataclass(frozen=True, slots=True)
class Began:
    """An epoch begins: the first one, or a new one on workers that stayed alive."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The consumer asks for the next batch."""


@dataclass(frozen=True, slots=True)
class Drew:
    """The sampler gave the indices of `batch`."""

    batch: int


@dataclass(frozen=True, slots=True)
class SamplerEnded:
    """The sampler has no more indices in this epoch."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has its dataset and takes work."""

    worker: int


@dataclass(frozen=True, slots=True)
class Unready:
    """A worker could not prepare: its dataset or `worker_init_fn` raised."""

    worker: int


@dataclass(frozen=True, slots=True)
class Result:
    """A worker finished `batch`; `nbytes` is what the batch occupies."""

    worker: int
    batch: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample of `batch` raised; the exception takes the batch's place in the order."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The worker's iterable has ended; `batch` and its later ones will not come.

    `cut_short`: it ended right after a sample that failed; the driver says so.
    """

    worker: int
    batch: int
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker gave no sign of progress on `batch` for long enough to say so."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """A sample of `batch` takes longer than the user allows."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """Somebody stopped a worker's process (SIGSTOP); it is neither dead nor at work."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A worker that owes something waits for work: what it was sent, or what it answered, is lost."""

    worker: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A worker announced that it ends because it was asked to."""

    worker: int


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's process is gone.

    `batch` and `position` are the sample it was on, when it was on one (position -1: on the batch as a whole).
    `prepared`: it had its dataset and took work.
    """

    worker: int
    batch: int | None = None
    position: int = -1
    cause: Cause = Cause.UNKNOWN
    prepared: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker's process is gone, and it was between two epochs: nothing is lost with it."""

    worker: int


@dataclass(frozen=True, slots=True)
class Reprieved:
    """The answer to `Judge`: make the batch again, without the sample or with another try at it."""

    batch: int


@dataclass(frozen=True, slots=True)
class Resized:
    """From now on there are to be this many workers, each with up to `depth` batches under way."""

    workers: int
    depth: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The consumer's own `timeout` passed without a batch."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The consumer is done with the loader."""


Event = (
    Began
    | Wanted
    | Drew
    | SamplerEnded
    | Ready
    | Unready
    | Result
    | Failure
    | Exhausted
    | Silence
    | Overdue
    | Suspended
    | Forgotten
    | Goodbye
    | Death
    | Lost
    | Reprieved
    | Resized
    | TimedOut
    | Closed
)
