"""A complete run of a program: what its loaders delivered, what failed, how long training waited.

These are facts only. The rules give advice, the report writes the text.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unjam.doctor.facts.trial import Place
from unjam.units import with_file


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """One batch as a worker made it. Times are nanoseconds of the monotonic clock."""

    worker: int
    begun: int
    collated: int
    done: int
    samples: int
    longest: int
    slowest: str
    packed: int = 0
    stamps: tuple[int, ...] = ()
    name: str = ""  # number of the batch in its epoch, and its samples


@dataclass(frozen=True, slots=True)
class TimedCopy:
    """The copy of one batch to a device. waited: how long the training stream waited for it. All in nanoseconds."""

    begun: int
    done: int
    nbytes: int
    waited: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The time from the request for a batch until the program received it. first: of the epoch."""

    asked: int
    got: int
    first: bool = False

    @property
    def seconds(self) -> float:
        """Duration of the wait."""
        return (self.got - self.asked) / 1e9


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why samples failed, and how many of them."""

    words: str
    count: int
    samples: str = ""
    decision: str = ""


@dataclass(frozen=True, slots=True)
class LoaderRun:
    """One loader. Times are in seconds; in `waits`, `made` and `memory` they are in nanoseconds.

    driver: "unjam" or "torch", the package that made the iterator.
    """

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
    loaders: int = 1  # loaders that the program created at this line
    starts: tuple[float, ...] = ()  # for each epoch: creating the iterator, plus the first wait
    own_starts: tuple[float, ...] = ()  # the part that unjam itself needed, for each set of workers
    waited: float = 0.0  # for all batches but the first of each epoch
    in_helper_thread: bool = False  # a thread other than the training thread took its batches
    trained: float = 0.0  # between getting one batch and asking for the next
    sampling: float = 0.0
    collating: float = 0.0
    packing: float = 0.0
    failures: tuple[RunFailure, ...] = ()
    overdue: tuple[tuple[str, float], ...] = ()  # samples that exceeded the timeout, their seconds
    incidents: Mapping[str, int] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    made: tuple[TimedBatch, ...] = ()
    copies: tuple[TimedCopy, ...] = ()
    memory: tuple[tuple[int, int, int], ...] = ()  # time, worker, private bytes
    profile: Mapping[str, Any] | None = None
    auto: str = ""  # the setting that `auto` chose, and why
    device: str = ""  # summary of the copies to a device
    nodes: tuple[tuple[str, int, int, int], ...] = ()  # of a cluster: name, workers, batches, bytes
    does_not_pay: str = ""  # why workers on the cluster are not worthwhile
    cut: bool = False  # the oldest waits and batches were discarded
    called_at: Place | None = None  # the line that called the function that created the loader
    distinction: str = ""  # what tells it apart from a loader with the same name and place; see `with_distinctions`
    files: Mapping[str, str] = field(default_factory=dict)  # sample -> its file, for the slowest samples

    @property
    def where(self) -> str:
        """Return the line that created it, such as "train.py:23, loader 2"."""
        return ", ".join(filter(None, (str(self.place or ""), self.distinction)))

    @property
    def label(self) -> str:
        """Return a description that no other loader of the run has."""
        return f"{self.name} at {self.where}" if self.place else ", ".join(filter(None, (self.name, self.distinction)))

    def sample(self, index: str) -> str:
        """Return the name of a sample, with its file if that is known."""
        return with_file(index, self.files.get(index, ""))

    @property
    def step(self) -> float | None:
        """Median seconds of a training step, without the first steps (warm-up)."""
        waits = self.waits
        took = [(after.asked - before.got) / 1e9 for before, after in itertools.pairwise(waits) if not after.first]
        return statistics.median(took[min(3, len(took) // 2) :]) if took else None

    @property
    def started(self) -> float:
        """Seconds that all epochs took to start."""
        return sum(self.starts)

    @property
    def total_wait(self) -> float:
        """Seconds that the training waited for this loader."""
        return self.started + self.waited


def with_distinctions(loaders: Sequence[LoaderRun]) -> tuple[LoaderRun, ...]:
    """Tell loaders with the same name and place apart: by the calling line, and by a number if that is the same too."""
    alike = Counter((one.name, str(one.place)) for one in loaders)
    same_call = Counter((one.name, str(one.place), str(one.called_at)) for one in loaders)
    numbers: Counter[tuple[str, str, str]] = Counter()
    found = []
    for one in loaders:
        key = one.name, str(one.place), str(one.called_at)
        numbers[key] += 1
        words = [f"called at {one.called_at}"] if one.called_at and same_call[key] < alike[key[:2]] else []
        words += [f"loader {numbers[key]}"] if same_call[key] > 1 else []
        found.append(dataclasses.replace(one, distinction=", ".join(words)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One process of a program, from the import of its DataLoader to its exit."""

    command: str
    seconds: float
    loaders: tuple[LoaderRun, ...]
    ended: str = ""  # the exception that ended the program
    rank: str = ""
    pid: int = 0
    cpus: int = 1
    thread_wait: float | None = None  # seconds that the training thread waited, overlaps counted once

    @property
    def total_wait(self) -> float:
        """Seconds that the training waited for data."""
        return (
            sum(one.total_wait for one in self.loaders if not one.in_helper_thread)
            if self.thread_wait is None
            else self.thread_wait
        )


def batch_name(number: int, indices: Sequence[Any]) -> str:
    """Return the name of a batch: its number in the epoch, its first and last sample."""
    if not indices or indices[0] is None:
        return f"batch {number}"
    ends = [str(indices[0])[:20], str(indices[-1])[:20]]
    return f"batch {number}: sample{'s' * (len(indices) > 1)} {' … '.join(ends[: len(indices)])}"


def size_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor, array or list."""
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
