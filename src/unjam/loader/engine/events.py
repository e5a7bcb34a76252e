"""The events that a loader's engine handles."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Cause(enum.Enum):
    """Why a worker's process died, as far as it matters to the engine."""

    UNKNOWN = "a signal or an exit"
    MEMORY = "killed for memory"
    OVERDUE = "unjam stopped it: the sample took too long"
    STOPPED = "unjam stopped it, and no sample is to blame"
    MACHINE = "the machine that it ran on is gone"


@dataclass(frozen=True, slots=True)
class Began:
    """An epoch begins: the first one, or a new one on workers that stayed alive.

    `turn`: the worker that gets the first batch. `ended`: workers whose stream has already ended, when an earlier
    run's epoch is resumed.
    """

    turn: int = 0
    ended: frozenset[int] = frozenset()


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
class Reported:
    """An event that a worker's report causes. `result`: the batch, or the failures; the engine does not look at it."""

    result: Any = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Unready(Reported):
    """A worker could not prepare: its dataset or `worker_init_fn` raised."""

    worker: int


@dataclass(frozen=True, slots=True)
class Result(Reported):
    """A worker made `batch`, which has `nbytes` bytes."""

    worker: int
    batch: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Failure(Reported):
    """A sample of `batch` raised; the exception replaces the batch in the order."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Exhausted(Reported):
    """The worker's iterable has ended; `batch` and later ones will not come.

    `cut_short`: it ended right after a failed sample; the driver warns about that.
    """

    worker: int
    batch: int
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Overdue:
    """A sample of `batch` takes longer than the user allows."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """A worker's process was suspended (SIGSTOP) from outside: it is alive, but does not run."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A worker that owes a batch is idle: its task or its answer is lost."""

    worker: int


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's process has ended.

    `batch` and `position`: the sample that it was on, if any (position -1: the whole batch).
    `prepared`: it had its dataset and took work.
    """

    worker: int
    batch: int | None = None
    position: int = -1
    cause: Cause = Cause.UNKNOWN
    prepared: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died between two epochs, so no batch is lost."""

    worker: int


@dataclass(frozen=True, slots=True)
class MakeAgain:
    """An answer to `AskPolicy`: make the batch again, without the sample or with another try."""

    batch: int


@dataclass(frozen=True, slots=True)
class Resized:
    """From now on use this many workers, each with up to `depth` batches in flight."""

    workers: int
    depth: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No batch came within the user's `timeout`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The consumer has closed the loader."""


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
    | Overdue
    | Suspended
    | Forgotten
    | Death
    | Lost
    | MakeAgain
    | Resized
    | TimedOut
    | Closed
)
