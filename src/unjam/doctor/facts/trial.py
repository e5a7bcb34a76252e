"""What one trial was to show, and what it showed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from unjam.system.file_owner import is_ours, is_users
from unjam.system.stacks import Frame


@dataclass(frozen=True, slots=True)
class Place:
    """A line of somebody's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def place_of(frames: tuple[Frame, ...]) -> Place | None:
    """The innermost call that is neither Python's, nor a library's, nor ours."""
    for frame in frames:
        if frame.line and is_users(frame.file):
            return Place(frame.file, frame.line)
    return None


def users_place(frame: FrameType | None) -> Place | None:
    """The nearest line of the user's own."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial: how many workers, started how, and what is changed against the program as it is."""

    workers: int
    start: str = ""
    epochs: int = 1
    seconds: float = 10.0
    tolerant: bool = False  # a sample that raises is left out
    fresh: bool = False  # in a new process that inherits nothing
    in_place: bool = False  # in the program's own process
    measured: bool = False  # nothing is compared, only timed
    threads: int = 0  # cap of native threads in workers; 0 leaves them alone
    prefetch: int = 0
    release: tuple[str, ...] = ()  # locks set free before the workers start
    unlock: tuple[str, ...] = ()  # locks replaced by ones that never wait
    reopen: bool = False  # every worker gets descriptors of its own
    reseed: bool = False  # generators get a seed of their own in every worker and epoch
    shard: bool = False  # worker k of an iterable keeps every n-th sample
    whole: bool = False  # drop_last off
    pack: tuple[str, ...] = ()  # containers of Python objects put into one buffer
    keep: bool = False  # the consumer keeps every batch
    idle: bool = False  # the consumer waits until the workers have nothing left to do
    persistent: bool = False  # workers live from epoch to epoch
    plain: bool = False  # without the program's worker_init_fn
    limit: int = 0  # most samples

    def __str__(self) -> str:
        words = [_count(self.workers, "worker")]
        if self.start and self.workers:
            words.append(self.start)
        for on, text in (
            (self.fresh, "in a new process that inherits nothing"),
            (self.in_place, "in the program's own process"),
            (bool(self.threads), f"{self.threads} native thread"),
            (bool(self.prefetch), f"prefetch_factor={self.prefetch}"),
            (bool(self.release), f"{', '.join(self.release)} released before the start"),
            (bool(self.unlock), f"without waiting for {', '.join(self.unlock)}"),
            (self.reopen, "every worker with descriptors of its own"),
            (self.reseed, "every worker with seeds of its own"),
            (self.shard, "every worker takes its share only"),
            (self.whole, "drop_last=False"),
            (bool(self.pack), f"{', '.join(self.pack)} in one shared buffer"),
            (self.keep, "every batch kept"),
            (self.idle, "a slow consumer"),
            (self.persistent, "persistent_workers=True"),
            (self.plain, "without worker_init_fn"),
            (self.tolerant, "bad samples left out"),
            (self.measured, "timed"),
        ):
            if on:
                words.append(text)
        return ", ".join(words)

    def changed(self, **changes: Any) -> Plan:
        """The same trial with something changed."""
        return replace(self, **changes)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as one trial loaded it. `order` counts within its worker and epoch."""

    index: str
    worker: int
    epoch: int
    seconds: float
    digest: str
    stable: str = ""
    none: bool = False
    changed: bool = False
    drew: tuple[str, ...] = ()
    at: float = 0.0
    shape: str = ""
    natural: bool = False  # loaded without our seeds: not to be compared
    swallowed: str = ""  # "ValueError at data.py:12, caught at data.py:15"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended a trial, or that a sample raised."""

    type_name: str
    message: str
    trace: str
    place: Place | None = None
    index: str = ""
    worker: int = -1
    stage: str = "sample"  # or "collate", "start", "init", "consumer", "batch"
    crosses: str = ""  # why it could not be pickled


@dataclass(frozen=True, slots=True)
class Sync:
    """A lock, queue or future that a stuck line names."""

    path: str
    type_name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process of a trial that did not go on, looked at before it was ended."""

    pid: int
    worker: int  # -1: the consumer
    index: str
    stage: str
    waits: str  # evidence.waiting's kind
    words: str
    frames: tuple[Frame, ...] = ()
    native: bool = False  # its main thread could not run Python code
    syncs: tuple[Sync, ...] = ()
    threads: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    seconds: float = 0.0
    busy: bool = False

    @property
    def place(self) -> Place | None:
        """The innermost line of the user's own."""
        return place_of(self.frames)


@dataclass(frozen=True, slots=True)
class End:
    """A process of a trial that ended without a goodbye."""

    pid: int
    worker: int
    code: int
    signal: str
    index: str
    frames: tuple[Frame, ...] = ()
    out_of_memory: bool = False

    @property
    def by_our_own(self) -> bool:
        """Whether the innermost call that is no library's is unjam's: then it was no sample's doing."""
        return next(
            (is_ours(frame.file) for frame in self.frames if is_ours(frame.file) or is_users(frame.file)), False
        )

    @property
    def place(self) -> Place | None:
        """The innermost line of the user's own."""
        return place_of(self.frames)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as the consumer got it."""

    epoch: int
    number: int
    wait: float
    at: float
    nbytes: int
    tensors: int
    storage: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A worker's memory at one moment: bytes of its own (private dirty), and its share of all it maps (PSS)."""

    worker: int
    samples: int
    private: int
    pss: int
    rss: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one plan.

    outcome: "finished", "cut" (time was up while all was well), "raised", "hung", "died", "memory" (stopped because the
    machine's memory ran low) or "refused" (the plan cannot be carried out here; `note` says why).
    """

    plan: Plan
    outcome: str
    seconds: float
    raised: Raised | None = None
    bad: tuple[Raised, ...] = ()
    samples: tuple[Sample, ...] = ()
    batches: tuple[Batch, ...] = ()
    epochs: tuple[float, ...] = ()
    starts: tuple[float, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    ends: tuple[End, ...] = ()
    memory: tuple[Memory, ...] = ()
    states: Mapping[tuple[int, int, str], str] = field(default_factory=dict)  # (worker, epoch, generator) -> state
    facts: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    note: str = ""
    lock_waits: float = 0.0  # share of the looks at busy workers that found them waiting for a lock

    @property
    def fine(self) -> bool:
        """Whether nothing went wrong."""
        return self.outcome in ("finished", "cut")

    @property
    def moved_on(self) -> bool:
        """Whether it did not freeze, whatever else it met."""
        return self.fine or (self.outcome == "raised" and bool(self.samples))

    def of_epoch(self, epoch: int = 0) -> list[Sample]:
        """The samples of one epoch that were loaded."""
        return [sample for sample in self.samples if sample.epoch == epoch]

    @property
    def rate(self) -> float:
        """Samples a second between the first and the last batch of the consumer, or 0 where that says nothing."""
        done = self.samples
        if len(self.batches) < 3 or not done:
            return len(done) / self.seconds if self.seconds > 1.5 else 0.0
        per_batch = len(done) / max(1, len(self.batches))
        took = self.batches[-1].at - self.batches[0].at
        # a fraction of a second says nothing about an epoch
        return per_batch * (len(self.batches) - 1) / took if took > 0.2 else 0.0
