"""What was seen of a program while it ran as it is: its processes, their loaders, every epoch."""

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

# in front of the names of what a process has of its own, among what a worker holds
SETTING, HASH = "process: ", "hash() of a text"


@dataclass(frozen=True, slots=True)
class WatchedSample:
    """A sample that was looked at.

    drew: state of each generator that it used, before it did. seeded: the global generators that it seeded. idle: those of
    them from which nothing was drawn afterwards, and the line that seeded each.
    """

    index: Any
    worker: int
    digest: str
    leaves: str
    drew: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    read: int = 0  # bytes that loading it read
    size: int = 0  # bytes that it has
    files: tuple[str, ...] = ()  # opened for it
    seeded: tuple[str, ...] = ()
    idle: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What a process held at a moment of a pass. containers: path -> length, bytes of an item, 1 if it holds a graph, 2 if shared memory.

    opened: the line that opened most of its files so far.
    """

    worker: int
    batches: int
    memory: int
    descriptors: int
    containers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    opened: Place | None = None


@dataclass(slots=True)
class WatchedEpoch:
    """One pass over a loader. held: hash of each thing that the dataset holds, before the pass."""

    number: int
    expected: int | None = None
    place: Place | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    began: float = 0.0
    ended: float = 0.0
    seed: int = 0  # torch's seed of the pass
    done: bool = False  # the loader had no more batches
    over: bool = False  # the program is done with it, or broke off
    batches: int = 0
    draws: int = 0
    indices: list[Any] = field(default_factory=list)
    order: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    first: float = 0.0
    sampling: float = 0.0  # seconds in the sampler, in the process that iterates
    steps: int = 0
    optimizer: int = 0  # the number of the optimizer that stepped last in it; 0: none did
    unused: int = 0  # batches before the first step
    changed: Sequence[str] = ()  # what the dataset holds that the program changed meanwhile
    grad: bool = False
    resources: Mapping[str, int] = field(default_factory=dict)
    samples: list[WatchedSample] = field(default_factory=list)
    # by worker: what the dataset held there at the start of the pass, and at the worker's end
    worker_hashes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    worker_end_hashes: dict[int, Mapping[str, str]] = field(default_factory=dict)
    signatures: dict[int, list[int]] = field(default_factory=dict)  # by worker: numbers for the samples of a stream
    loaded: int = 0
    loading: float = 0.0
    collating: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
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
    def home(self) -> Place | None:
        """The line of the dataset's class."""
        return self.description.home

    def composed_at(self, path: str = "dataset") -> Place | None:
        """Where the program put this part of the dataset together, or took it from another one."""
        return self.description.composed.get(path)

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
        """The passes that reached the end."""
        return [one for one in self.epochs if one.done or (one.expected and one.batches >= one.expected)]

    @property
    def trains(self) -> bool:
        """Whether an optimizer steps while the program uses it."""
        return any(epoch.steps for epoch in self.epochs)

    def base_indices(self, epoch: WatchedEpoch) -> list[Any]:
        """The drawn indices as those of the dataset under Subsets."""
        mapped = self.description.subset
        if not mapped:
            return epoch.indices
        return [mapped[at] if isinstance(at, int) and -len(mapped) <= at < len(mapped) else at for at in epoch.indices]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """Something that the program wrote with `torch.save`.

    passes: of each loader in use its number, the number of the pass, the batches of it so far, and
    the batches of all its passes.
    """

    optimizer: bool  # an optimizer's state was among it
    numbers: frozenset[int]
    passes: tuple[tuple[int, int, int, int], ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class DeviceCopies:
    """Copies of large tensors to an accelerator from one line, and how long they held the thread.

    fits_in_bytes: float numbers that are whole numbers up to 255. from_pinned, from_pageable: seconds of one copy, measured there.
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
    """Waits for an accelerator at one line. idle: seconds of loading, of the whole process, in which the device had no work."""

    place: Place
    count: int
    seconds: float
    idle: float


@dataclass(frozen=True, slots=True)
class ObservedLine:
    """A line of the program at which looks found a process. stage: as in `Doing`. waits: as the kind of a Waiting."""

    place: Place
    stage: str
    waits: str
    times: int


@dataclass(frozen=True, slots=True)
class ProcessObservations:
    """What looks from outside found of one process.

    waits, targets: how often it waited for this kind of thing, for this socket or pipe. lines: of so many stacks.
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
    parent: int
    rank: int | None
    script: str
    loaders: list[WatchedLoader] = field(default_factory=list)
    failures: list[WatchedFailure] = field(default_factory=list)
    file_operations: list[FileOperation] = field(default_factory=list)
    unreleased: list[UnreleasedResource] = field(default_factory=list)
    ended_by_exception: list[EndedByException] = field(default_factory=list)
    used_connections: dict[str, list[int]] = field(
        default_factory=dict
    )  # a connection older than the workers: those whose samples used it
    lost_batches: list[LostBatch] = field(default_factory=list)
    mapped_files: list[str] = field(default_factory=list)  # data files that it, or a worker of it, had mapped
    shrunk_files: list[ShrunkFile] = field(default_factory=list)
    lock_files: list[LockFile] = field(default_factory=list)
    limit_changes: list[LimitChange] = field(default_factory=list)
    seed_calls: list[SeedCall] = field(default_factory=list)
    early_rank_reads: list[Place] = field(
        default_factory=list
    )  # the rank was asked for before the group of ranks existed
    inherited_outputs: list[InheritedOutput] = field(default_factory=list)
    sample_outputs: list[SampleOutput] = field(default_factory=list)
    saved_files: list[SavedFile] = field(default_factory=list)
    device_copies: dict[Place, DeviceCopies] = field(default_factory=dict)
    device_waits: dict[Place, DeviceWaits] = field(default_factory=dict)


@dataclass(slots=True)
class ProgramFacts:
    """The program as it ran.

    outcome: "ended", "failed" (its exit code says so), "frozen" or "stopped" (the time was up).
    """

    outcome: str
    code: int | None
    seconds: float
    processes: list[WatchedProcess] = field(default_factory=list)
    output: str = ""
    scene: Scene | None = None  # what its processes did when it froze
    files_kept: bool = False  # what it wrote is kept: there was no view
    second_run: list[WatchedProcess] = field(default_factory=list)  # a second run, up to its first loader
    observations: tuple[ProcessObservations, ...] = ()  # of each process of it, from outside

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
        """What all processes did to files and folders."""
        return [deed for process in self.processes for deed in process.file_operations]

    @property
    def unreleased(self) -> list[UnreleasedResource]:
        """What samples took and did not give back, in the order in which it happened."""
        return sorted((one for process in self.processes for one in process.unreleased), key=lambda one: one.at)

    @property
    def ended_by_exception(self) -> list[EndedByException]:
        """The threads and processes that ended with an exception."""
        return sorted((one for process in self.processes for one in process.ended_by_exception), key=lambda one: one.at)

    @property
    def saves_training(self) -> bool:
        """Whether it writes checkpoints from which a training can go on."""
        return any(saved.optimizer for process in self.processes for saved in process.saved_files)

    @property
    def trains(self) -> bool:
        """Whether an optimizer steps anywhere."""
        return any(loader.trains for loader in self.loaders)

    def observations_of(self, loader: WatchedLoader) -> list[ProcessObservations]:
        """The looks at the processes that load its samples."""
        wanted = loader.worker_pids if loader.workers else [loader.pid]
        return [one for one in self.observations if one.pid in wanted]

    def siblings(self) -> Iterator[list[WatchedLoader]]:
        """The loaders of several processes that the same line made: those of ranks."""
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
