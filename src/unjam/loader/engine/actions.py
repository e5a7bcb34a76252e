"""What the engine asks the driver to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Reason(enum.Enum):
    """Why a worker is stopped or the epoch is given up; part of the message."""

    EXHAUSTED = "its iterable has ended"
    TOO_MANY = "fewer workers are enough"
    OVERDUE = "a sample took longer than sample_timeout"
    SUSPENDED = "it was suspended repeatedly"
    FORGOTTEN = "a request or a result was lost in transit"
    MOVED = "it starts again on another node"
    DIED = "on_worker_death is 'raise'"
    DIED_REPEATEDLY = "the same sample killed its worker on every try"
    KILLED_FOR_MEMORY = "the OOM killer killed its worker, which was the last one"
    NEVER_READY = "it died repeatedly before its first sample"
    TOO_MANY_DEATHS = "more workers died in this epoch than max_restarts allows"
    CANNOT_REPLAY = "a sample of an iterable dataset cannot be skipped"
    UNREADY = "a worker could not be set up"
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
    """Send `batch` to `worker`."""

    worker: int
    batch: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget `batch`, which won't be delivered. exhausted: because its worker's iterable has ended."""

    batch: int
    exhausted: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give `batch` to the consumer: its data, or the exception that replaces it."""

    batch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop `worker`."""

    worker: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Continue:
    """Continue `worker`, which something suspended."""

    worker: int


@dataclass(frozen=True, slots=True)
class AskPolicy:
    """Ask the policy about a sample that killed `deaths` workers.

    Answer with `MakeAgain`, `Failure` or `Result`.
    """

    worker: int
    batch: int
    position: int
    reason: Reason
    deaths: int = 1


@dataclass(frozen=True, slots=True)
class Shrink:
    """Report that the OOM killer killed `worker` and that `left` workers share its work."""

    worker: int
    left: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the epoch with an error; `worker`: the one that caused it, or -1."""

    reason: Reason
    worker: int = -1


@dataclass(frozen=True, slots=True)
class End:
    """End the epoch: every batch was delivered."""


Action = Start | Draw | Send | Drop | Deliver | Stop | Continue | AskPolicy | Shrink | GiveUp | End
