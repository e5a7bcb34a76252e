"""A whole run of a program, as its loaders saw it: what was delivered, what failed, how long the training waited.

Facts only; the advice is the rules' and the words are the report's.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unjam.doctor.facts.trial import Place


@dataclass(frozen=True, slots=True)
class Made:
    """One batch as a worker made it; times in nanoseconds of the machine's own clock."""

    worker: int
    begun: int
    collated: int
    done: int
    samples: int
    longest: int
    slowest: str
    packed: int = 0
    stamps: tuple[int, ...] = ()
    name: str = ""  # which batch of its epoch, and which samples


@dataclass(frozen=True, slots=True)
class Wait:
    """The program asked for a batch and got it. `first`: of an epoch."""

    asked: int
    got: int
    first: bool = False

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return (self.got - self.asked) / 1e9


@dataclass(frozen=True, slots=True)
class Failure:
    """A cause that samples failed for, and how often."""

    words: str
    count: int
    samples: str = ""
    decision: str = ""


@dataclass(frozen=True, slots=True)
class LoaderRun:
    """One loader. driver: whose iterator it had, "unjam" or "torch". Times are in seconds, those of `waits` and `made` in nanoseconds."""

    name: str
    place: Place | None
    workers: int
    batch_size: int | None
    persistent: bool
    driver: str
    note: str = ""
    epochs: int = 0
    batches: int = 0
    samples: int = 0
    failed: int = 0
    restarts: int = 0
    loaders: int = 1  # how many were made at this line
    starts: tuple[float, ...] = ()  # making an iterator and getting its first batch, for each epoch
    own_starts: tuple[float, ...] = ()  # what unjam itself took of that, for each set of workers
    waited: float = 0.0  # for all other batches
    aside: bool = False  # another thread than the one that trains took its batches
    trained: float = 0.0  # between getting one batch and asking for the next
    sampling: float = 0.0
    collating: float = 0.0
    packing: float = 0.0
    failures: tuple[Failure, ...] = ()
    overdue: tuple[tuple[str, float], ...] = ()  # samples that were ended for their time, and the seconds that they had
    incidents: Mapping[str, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    made: tuple[Made, ...] = ()
    memory: tuple[tuple[int, int, int], ...] = ()  # when, worker, bytes of its own
    profile: Mapping[str, Any] | None = None
    auto: str = ""  # what was chosen while it ran, and why
    cut: bool = False  # the oldest waits and batches were forgotten

    @property
    def step(self) -> float | None:
        """What the training does between a batch and the question for the next, usually; the first ones warm up."""
        waits = self.waits
        took = [(after.asked - before.got) / 1e9 for before, after in itertools.pairwise(waits) if not after.first]
        return statistics.median(took[min(3, len(took) // 2) :]) if took else None

    @property
    def started(self) -> float:
        """Seconds that all epochs took to begin."""
        return sum(self.starts)

    @property
    def lost(self) -> float:
        """Seconds that the training stood still for this loader."""
        return self.started + self.waited


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One process of a program, from its first loader to its end."""

    command: str
    seconds: float
    loaders: tuple[LoaderRun, ...]
    ended: str = ""  # the exception that ended it
    rank: str = ""
    pid: int = 0
    cpus: int = 1
    stood: float | None = None  # seconds that the thread that trains waited, each moment once

    @property
    def lost(self) -> float:
        """Seconds that the training stood still."""
        return sum(one.lost for one in self.loaders if not one.aside) if self.stood is None else self.stood


def batch_name(number: int, indices: Sequence[Any]) -> str:
    """A batch in a few words: its number in its epoch, its first and its last sample."""
    if not indices or indices[0] is None:
        return f"batch {number}"
    ends = [str(indices[0])[:20], str(indices[-1])[:20]]
    return f"batch {number}: sample{'s' * (len(indices) > 1)} {' … '.join(ends[: len(indices)])}"


def size_of(batch: Any) -> int:
    """How many samples are in a batch: the length of its first tensor, array or list."""
    for _ in range(8):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)) and batch:
            if isinstance(batch[0], (str, bytes)):
                return len(batch)
            batch = batch[0]
        else:
            return 1
    return 1
