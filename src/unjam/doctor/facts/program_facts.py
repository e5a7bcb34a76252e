"""A watched program, run without changes: its processes, their loaders, every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unjam.doctor.facts.faults import (
    EndedByException,
    FileOperation,
    InheritedOutput,
    LimitChange,
    LockFile,
    LostBatch,
    SampleOutput,
    SeedCall,
    ShrunkFile,
    UnreleasedResource,
    WatchedFailure,
)
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.trial import Place

# prefix of the names of process settings, and the name of one of them
SETTING, HASH = "process: ", "hash() of a text"


@dataclass(frozen=True, slots=True)
class WatchedSample:
    """An examined sample.

    drew: the state of each generator that it used, before. seeded: the global generators that it seeded. idle: those of
    them that it did not use afterwards, and the line that seeded each.
    """

    index: Any
    worker: int
    digest: str
    leaves: str
    drew: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    read: int = 0  # bytes that were read to load it
    size: int = 0  # in bytes
    files: tuple[str, ...] = ()  # opened for it
    seeded: tuple[str, ...] = ()
    idle: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a process used at one moment of an epoch. opened: the line that opened most of its files so far.

    containers: path -> length, bytes of one item, and flags: 1 if items hold an autograd graph, 2 if shared memory.
    """

    worker: int
    batches: int
    memory: int
    descriptors: int
    containers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    opened: Place | None = None


@dataclass(slots=True)
class WatchedEpoch:
    """One pass over a loader. hashes: of each value that the dataset holds, before the epoch."""

    number: int
    expected: int | None = None
    place: Place | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    began: float = 0.0
    ended: float = 0.0
    seed: int = 0  # torch's base seed of the epoch
    done: bool = False  # the loader had no more batches
    over: bool = False  # the program is done with it or left it early
    batches: int = 0
    draws: int = 0
    indices: list[Any] = field(default_factory=list)
    order: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    first: float = 0.0
    sampling: float = 0.0  # seconds in the sampler, in the process that iterates
    steps: int = 0
    optimizer: int = 0  # the number of the optimizer that stepped last; 0: none
    unused: int = 0  # batches before the first step
    changed: Sequence[str] = ()  # paths in the dataset that the program changed meanwhile
    grad: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    samples: list[WatchedSample] = field(default_factory=list)
    # by worker: the same hashes there, at the start of the epoch and at the worker's end
    worker_hashes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    worker_end_hashes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    signatures: dict[int, list[int]] = field(default_factory=dict)  # by worker: hashes of the samples of a stream
    loaded: int = 0
    loading: float = 0.0
    usage: list[ResourceUsage] = field(default_factory=list)


@dataclass(slots=True)
class WatchedLoader:
    """One loader of one process."""

    number: int
    pid: int
    description: LoaderDescription
    made: Place | None
    place: Place | None
    epochs: list[WatchedEpoch] = field(default_factory=list)
    worker_pids: list[int] = field(default_factory=list)
    distinction: str = ""  # what tells it apart from a loader with the same name

    @property
    def name(self) -> str:
        """A name for messages."""
        at = ", ".join(filter(None, (str(self.made or self.place or ""), self.distinction)))
        return f"{self.description.kind} over {self.description.dataset}" + (f" ({at})" if at else "")

    @property
    def source_files(self) -> list[str]:
        """The files of its code, and of the lines that create and iterate it, each once."""
        places = (self.made, self.place)
        return list(dict.fromkeys([*self.description.files, *(one.file for one in places if one is not None)]))

    @property
    def home(self) -> Place | None:
        """The line of the dataset's class."""
        return self.description.home

    @property
    def workers(self) -> int:
        """Its number of workers."""
        return self.description.workers

    @property
    def iterable(self) -> bool:
        """Whether its dataset is a stream."""
        return self.description.iterable

    @property
    def complete_epochs(self) -> list[WatchedEpoch]:
        """The epochs that reached their end."""
        return [one for one in self.epochs if one.done or (one.expected and one.batches >= one.expected)]

    @property
    def trains(self) -> bool:
        """Whether an optimizer steps while the program uses it."""
        return any(epoch.steps for epoch in self.epochs)

    def base_indices(self, epoch: WatchedEpoch) -> list[Any]:
        """The drawn indices, mapped through Subsets to indices of the base dataset."""
        mapped = self.description.subset
        if not mapped:
            return epoch.indices
        return [mapped[at] if isinstance(at, int) and -len(mapped) <= at < len(mapped) else at for at in epoch.indices]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A call of `torch.save`.

    passes: for each loader in use its number, the number of the epoch, its batches so far, and
    the batches of all its epochs.
    """

    optimizer: bool  # it contains an optimizer's state
    numbers: frozenset[int]
    passes: tuple[tuple[int, int, int, int], ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class DeviceCopies:
    """Copies of large tensors to an accelerator from one line, and how long they blocked the thread.

    fits_in_bytes: the floats are whole numbers up to 255. from_pinned, from_pageable: measured seconds of one such copy.
    """

    place: Place
    count: int
    nbytes: int
    seconds: float
    pinned: bool
    dtype: str
    fits_in_bytes: bool
    from_pinned: float = 0.0
    from_pageable: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceWaits:
    """Waits for an accelerator at one line. idle: seconds of loading in this process in which the device had no work."""

    place: Place
    count: int
    seconds: float
    idle: float


@dataclass(frozen=True, slots=True)
class ObservedLine:
    """A line at which a process was observed. stage: as in Activity. waits: as Waiting.kind."""

    place: Place
    stage: str
    waits: str
    times: int


@dataclass(frozen=True, slots=True)
class ProcessObservations:
    """Observations of one process from outside.

    times: number of observations. waits, targets: how often it waited in this way, and for this socket or pipe. lines: from
    this many stacks.
    """

    pid: int
    times: int
    waits: Mapping[str, int]
    targets: Mapping[str, int]
    lines: tuple[ObservedLine, ...] = ()
    stacks: int = 0


@dataclass(slots=True)
class WatchedProcess:
    """One process of the program that is not a worker."""

    pid: int
    rank: int | None
    loaders: list[WatchedLoader] = field(default_factory=list)
    failures: list[WatchedFailure] = field(default_factory=list)
    file_operations: list[FileOperation] = field(default_factory=list)
    unreleased: list[UnreleasedResource] = field(default_factory=list)
    ended_by_exception: list[EndedByException] = field(default_factory=list)
    # an inherited connection -> the workers whose samples used it
    used_connections: dict[str, list[int]] = field(default_factory=dict)
    lost_batches: list[LostBatch] = field(default_factory=list)
    mapped_files: list[str] = field(default_factory=list)  # data files that it or one of its workers had mapped
    shrunk_files: list[ShrunkFile] = field(default_factory=list)
    lock_files: list[LockFile] = field(default_factory=list)
    limit_changes: list[LimitChange] = field(default_factory=list)
    seed_calls: list[SeedCall] = field(default_factory=list)
    # lines that read the rank before the process group existed
    early_rank_reads: list[Place] = field(default_factory=list)
    inherited_outputs: list[InheritedOutput] = field(default_factory=list)
    sample_outputs: list[SampleOutput] = field(default_factory=list)
    saved_files: list[SavedFile] = field(default_factory=list)
    device_copies: dict[Place, DeviceCopies] = field(default_factory=dict)
    device_waits: dict[Place, DeviceWaits] = field(default_factory=dict)


@dataclass(slots=True)
class ProgramFacts:
    """The watched program.

    outcome: "ended", "failed" (by its exit code), "frozen" or "stopped" (out of time).
    """

    outcome: str
    code: int | None
    seconds: float
    processes: list[WatchedProcess] = field(default_factory=list)
    output: str = ""
    scene: Scene | None = None  # its processes when it was frozen
    files_kept: bool = False  # its writes were not isolated, so they are kept
    # the processes of a second run, up to their first loader
    second_run: list[WatchedProcess] = field(default_factory=list)
    observations: tuple[ProcessObservations, ...] = ()  # of each of its processes

    @property
    def loaders(self) -> list[WatchedLoader]:
        """The loaders of all processes."""
        return [loader for process in self.processes for loader in process.loaders]

    @property
    def failures(self) -> list[WatchedFailure]:
        """The exceptions of all processes."""
        return [failure for process in self.processes for failure in process.failures]

    @property
    def file_operations(self) -> list[FileOperation]:
        """The file operations of all processes."""
        return [one for process in self.processes for one in process.file_operations]

    @property
    def unreleased(self) -> list[UnreleasedResource]:
        """The resources that samples did not release, by time."""
        return sorted((one for process in self.processes for one in process.unreleased), key=lambda one: one.at)

    @property
    def ended_by_exception(self) -> list[EndedByException]:
        """The threads and processes that ended with an exception, by time."""
        return sorted((one for process in self.processes for one in process.ended_by_exception), key=lambda one: one.at)

    @property
    def saves_training(self) -> bool:
        """Whether it writes checkpoints from which training can resume."""
        return any(saved.optimizer for process in self.processes for saved in process.saved_files)

    @property
    def trains(self) -> bool:
        """Whether an optimizer steps anywhere."""
        return any(loader.trains for loader in self.loaders)

    def observations_of(self, loader: WatchedLoader) -> list[ProcessObservations]:
        """The observations of the processes that load its samples."""
        wanted = loader.worker_pids if loader.workers else [loader.pid]
        return [one for one in self.observations if one.pid in wanted]

    def siblings(self) -> Iterator[list[WatchedLoader]]:
        """The loaders that the same line made in several processes, such as ranks."""
        groups: dict[Any, dict[int, WatchedLoader]] = {}
        for process in self.processes:
            count: dict[Any, int] = {}
            for loader in process.loaders:
                at = loader.made or loader.place
                if at is None:
                    continue
                count[at] = count.get(at, 0) + 1
                groups.setdefault((at, count[at], loader.description.base), {})[process.pid] = loader
        for found in groups.values():
            if len(found) > 1:
                yield [found[pid] for pid in sorted(found)]

    def rank_of(self, loader: WatchedLoader) -> int | None:
        """The rank of a loader's process."""
        return next((one.rank for one in self.processes if one.pid == loader.pid), None)
