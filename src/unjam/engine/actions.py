"""What the engine asks the driver to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Reason(enum.Enum):
    """Why a worker is stopped or the epoch given up; it reaches the message."""

    CLOSED = "the loader was closed"
    EXHAUSTED = "its iterable has ended"
    SILENT = "it gave no sign of progress"
    DIED = "a worker died"
    DIED_REPEATEDLY = "the same batch killed its worker twice"
    TOO_MANY_DEATHS = "too many workers died in this epoch"
    CANNOT_REPLAY = "a worker died and its iterable cannot be taken up where it was"
    UNREADY = "a worker could not prepare"
    TIMED_OUT = "no batch came within the timeout"


@dataclass(frozen=True, slots=True)
class Start:
    """Start `worker`, the first time or as a replacement."""

    worker: int


@dataclass(frozen=True, slots=True)
class Draw:
    """Ask the sampler for the indices of `batch`; answer with `Drew` or `SamplerEnded`."""

    batch: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `batch` to `worker`."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget `batch`: nobody will deliver it (its worker's iterable has ended, or a new epoch began)."""

    batch: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give `batch` to the consumer: its data, or the exception in its place."""

    batch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop `worker`."""

    worker: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Warn:
    """Explain on the log that `worker` makes no progress on `batch`."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the epoch with an error; `worker` and `batch` say where, when one is to blame."""

    reason: Reason
    worker: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The epoch is over: every batch was delivered."""


Action = Start | Draw | Send | Drop | Deliver | Stop | Warn | GiveUp | End
