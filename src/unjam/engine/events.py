"""What can happen to a loader, as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The worker's iterable has ended; `batch` and its later ones will not come."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker gave no sign of progress on `batch` for the named bound."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """A worker announced that it ends because it was asked to."""

    worker: int


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's process is gone."""

    worker: int


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
    | Goodbye
    | Death
    | TimedOut
    | Closed
)
