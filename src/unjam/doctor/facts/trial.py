"""The plan of one trial, and its result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from unjam.doctor.facts.object_state import NOTHING_KNOWN, ObjectState
from unjam.system.file_owner import is_ours, is_users
from unjam.system.stacks import Frame
from unjam.units import count


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def place_of(frames: tuple[Frame, ...]) -> Place | None:
    """Return the innermost line of user code: not Python, not a library, not unjam."""
    for frame in frames:
        if frame.line and is_users(frame.file):
            return Place(frame.file, frame.line)
    return None


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of user code at or above this frame, the innermost first."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def users_place(frame: FrameType | None) -> Place | None:
    """Return the innermost line of user code at or above this frame."""
    return next((Place(one.f_code.co_filename, one.f_lineno) for one in users_frames(frame)), None)


FILE_LOCKS = "file locks"  # in `Plan.unlock`


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial: number of workers, start method, and the changes to the program."""

    workers: int
    start: str = ""
    epochs: int = 1
    seconds: float = 10.0
    tolerant: bool = False  # skip samples that raise
    fresh: bool = False  # in a new interpreter that inherits nothing
    in_place: bool = False  # in the program's own process
    measured: bool = False  # only measure speed; samples are not compared
    threads: int = 0  # limit of native threads in workers; 0: no change
    prefetch: int = 0
    release: tuple[str, ...] = ()  # locks released before the workers start
    unlock: tuple[str, ...] = ()  # locks replaced by ones that never wait
    reopen: bool = False  # every worker reopens its files
    reseed: bool = False  # every worker and epoch seeds its random generators differently
    shard: bool = False  # each worker of an iterable keeps only every n-th sample
    whole: bool = False  # drop_last off
    pack: tuple[str, ...] = ()  # containers of Python objects moved into one shared buffer
    keep: bool = False  # the consumer keeps every batch
    idle: bool = False  # the consumer waits until all workers are idle
    persistent: bool = False  # workers are kept between epochs
    plain: bool = False  # without the program's worker_init_fn
    limit: int = 0  # maximum number of samples; 0: no limit
    without: tuple[str, ...] = ()  # samples of a map-style dataset that are not loaded

    def __str__(self) -> str:
        words = [count(self.workers, "worker")]
        if self.start and self.workers:
            words.append(self.start)
        if self.without:
            shown = ", ".join(self.without[:3])
            words.append(f"without sample {shown}" + (f" and {len(self.without) - 3} more" if self.without[3:] else ""))
        for on, text in (
            (self.fresh, "in a new process that inherits nothing"),
            (self.in_place, "in the program's own process"),
            (bool(self.threads), count(self.threads, "native thread")),
            (bool(self.prefetch), f"prefetch_factor={self.prefetch}"),
            (bool(self.release), f"{', '.join(self.release)} released before workers start"),
            (bool(self.unlock), f"without waiting for {', '.join(self.unlock)}"),
            (self.reopen, "own file descriptors in every worker"),
            (self.reseed, "own seeds in every worker"),
            (self.shard, "only its own share in every worker"),
            (self.whole, "drop_last=False"),
            (bool(self.pack), f"{', '.join(self.pack)} in one shared buffer"),
            (self.keep, "every batch kept"),
            (self.idle, "slow consumer"),
            (self.persistent, "persistent_workers=True"),
            (self.plain, "without worker_init_fn"),
            (self.tolerant, "failing samples skipped"),
            (self.measured, "timed"),
        ):
            if on:
                words.append(text)
        return ", ".join(words)

    @property
    def is_plain(self) -> bool:
        """Whether only the number of workers and their start method may be changed."""
        return self == Plan(self.workers, self.start, epochs=self.epochs, seconds=self.seconds)

    def changed(self, **changes: Any) -> Plan:
        """Return a copy of the plan with these changes."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as a trial loaded it.

    digest: hash of the content. leaves: short hashes of its leaves, joined by dots.
    """

    index: str
    worker: int
    epoch: int
    seconds: float
    digest: str
    leaves: str = ""
    none: bool = False
    changed: bool = False
    drew: tuple[str, ...] = ()
    at: float = 0.0
    shape: str = ""
    unseeded: bool = False  # loaded without the doctor's seeds, so not comparable
    swallowed: str = ""  # "ValueError at data.py:12, caught at data.py:15"
    cpu_seconds: float = 0.0
    file: str = ""  # of a slow sample, if the dataset holds its path


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ended a trial or that a sample raised."""

    type_name: str
    message: str
    trace: str
    place: Place | None = None
    index: str = ""
    worker: int = -1
    stage: str = "sample"  # or "collate", "start", "init", "consumer", "batch"
    pickle_error: str = ""  # why the exception could not be pickled
    process: int = 0  # the process that raised it

    @property
    def names_process(self) -> bool:
        """Whether the message contains the pid of the process that raised it, perhaps by chance."""
        return self.process > 0 and re.search(rf"(?<!\d){self.process}(?!\d)", self.message) is not None


@dataclass(frozen=True, slots=True)
class SyncObject:
    """A lock, queue or future that a blocked line uses."""

    path: str
    type_name: str
    state: ObjectState = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class StuckProcess:
    """A blocked process, inspected in a running program or before a trial was killed."""

    pid: int
    worker: int  # -1: the consumer
    index: str
    stage: str
    waits: str  # the `kind` of a Waiting
    words: str
    frames: tuple[Frame, ...] = ()
    native: bool = False  # its main thread is blocked in native code
    syncs: tuple[SyncObject, ...] = ()
    threads: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    seconds: float = 0.0
    busy: bool = False

    @property
    def place(self) -> Place | None:
        """The innermost line of user code."""
        return place_of(self.frames)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """A process of a trial that exited unexpectedly."""

    pid: int
    worker: int
    code: int
    signal: str
    index: str
    frames: tuple[Frame, ...] = ()
    out_of_memory: bool = False

    @property
    def by_our_own(self) -> bool:
        """Whether it exited in unjam's code, not in user code, so that no sample is to blame."""
        return next(
            (is_ours(frame.file) for frame in self.frames if is_ours(frame.file) or is_users(frame.file)), False
        )

    @property
    def place(self) -> Place | None:
        """The innermost line of user code."""
        return place_of(self.frames)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as the consumer received it."""

    epoch: int
    number: int
    wait: float
    at: float
    nbytes: int
    tensors: int
    storage: int


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The private (dirty) memory of a worker at one moment, in bytes."""

    worker: int
    samples: int
    private: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class UnsendablePart:
    """The part of a batch that could not be sent."""

    path: str
    type_name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DatasetChanges:
    """How loading changed the dataset in the trial's main process: attributes and containers, by path.

    bounded: containers that grew and then stopped growing. kept: for each growing container, the number of new items, the bytes
    of one, and whether it keeps a traceback.
    """

    changed: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    kept: Mapping[str, tuple[int, int, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one plan.

    outcome: "finished", "cut" (out of time, nothing was wrong), "raised", "hung", "died",
    "memory" (stopped because memory ran low) or "refused" (not possible here; `note` says why).
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
    stuck: tuple[StuckProcess, ...] = ()
    ends: tuple[ProcessEnd, ...] = ()
    memory: tuple[WorkerMemory, ...] = ()
    # (worker, epoch, generator) -> state
    states: Mapping[tuple[int, int, str], str] = field(default_factory=dict)
    alias: str = ""  # path of the buffer that several samples share
    overwritten: str | None = None  # path of the buffer that two batches share
    second_digests: Mapping[str, str] = field(default_factory=dict)  # sample -> its hash when loaded a second time
    second_seconds: Mapping[str, float] = field(default_factory=dict)
    collate_drew: frozenset[str] = frozenset()  # generators that the collate function used
    unsendable: UnsendablePart | None = None
    moved: tuple[tuple[int, str], ...] = ()  # descriptors whose file position the workers moved, and their files
    dropped: tuple[int, ...] = ()  # number of samples that drop_last discarded, per worker
    dataset_changes: DatasetChanges = DatasetChanges()
    waits: Mapping[str, int] = field(default_factory=dict)  # kind of wait -> how often a worker was observed in it
    # connection -> number of workers observed waiting for it
    waited_on: Mapping[str, int] = field(default_factory=dict)
    peak: Mapping[int, int] = field(default_factory=dict)  # worker -> its peak memory in bytes
    threads: int = 0  # native threads of all its processes
    oom_kills: int = 0
    output: str = ""
    note: str = ""
    lines: tuple[tuple[Place, int], ...] = ()  # the user's lines in its stacks and how often, the most frequent first
    lock_waits: float = 0.0  # share of the observations in which busy workers waited for a lock

    @property
    def fine(self) -> bool:
        """Whether nothing went wrong."""
        return self.outcome in ("finished", "cut")

    @property
    def progressed(self) -> bool:
        """Whether it did not freeze; it may have raised."""
        return self.fine or (self.outcome == "raised" and bool(self.samples))

    def of_epoch(self, epoch: int = 0) -> list[Sample]:
        """Return the samples that were loaded in one epoch."""
        return [sample for sample in self.samples if sample.epoch == epoch]

    @property
    def rate(self) -> float:
        """Samples per second from the first to the last batch, or 0 if the time is too short."""
        done = self.samples
        if len(self.batches) < 3 or not done:
            return len(done) / self.seconds if self.seconds > 1.5 else 0.0
        per_batch = len(done) / max(1, len(self.batches))
        took = self.batches[-1].at - self.batches[0].at
        # a fraction of a second is too short for a rate
        return per_batch * (len(self.batches) - 1) / took if took > 0.2 else 0.0
