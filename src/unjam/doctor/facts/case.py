"""Everything that the doctor knows about one loader: its captured state, its source code, its trials.

These are facts only. The rules decide what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unjam.doctor.facts.object_state import NOTHING_KNOWN, ObjectState
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.trial import Place, Plan, Trial
from unjam.system.stacks import Frame


@dataclass(frozen=True, slots=True)
class Part:
    """An object that the dataset, its collate function or the code they call refers to.

    kind: "lock", "barrier", "loop", "handle", "generator", "thread", "executor", "queue", "objects" (many
    Python objects) or "array".
    path: as the user would write it, e.g. `dataset.reader.lock`.
    place: the line that set it.
    """

    path: str
    kind: str
    type_name: str
    place: Place | None = None
    state: ObjectState = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class WorkerArgument:
    """Whether one argument of a worker can be pickled. reason: why not; "" if it can."""

    name: str
    path: str = ""
    type_name: str = ""
    reason: str = ""
    place: Place | None = None
    nbytes: int = 0
    unpickle_error: str = ""  # why it could be pickled but not unpickled
    unpickle_error_place: Place | None = None  # the line that raised it
    from_main: tuple[str, ...] = ()  # classes and functions of __main__ that the pickle refers to


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The loader as the program created it."""

    kind: str
    dataset: str
    dataset_place: Place | None
    iterable: bool
    length: int | None
    batch_size: int | None
    num_workers: int
    start_method: str
    prefetch_factor: int
    timeout: float
    pins_without_accelerator: bool  # pin_memory=True without an accelerator
    persistent_workers: bool
    drop_last: bool
    sampler: str
    collate: str
    default_collate: bool
    worker_init: str
    worker_init_place: Place | None = None
    made_at: Place | None = None
    iterated_at: Place | None = None
    sharing: str = "file_descriptor"
    batches: int | None = None
    order_repeats: bool = False  # each epoch has the same order until set_epoch is called
    list_reused: bool = False  # the batch sampler yields the same list object each time
    driver: str = "torch"  # "torch" or "unjam": which DataLoader class it is
    main_class: bool = False  # the dataset's class is defined in __main__
    # class of a __getitem__, class of the inherited __getitems__ that bypasses it, and the line of the former
    bypassed_getitem: tuple[str, str, Place | None] | None = None


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """A Python thread of the captured process, other than the main thread."""

    name: str
    frames: tuple[Frame, ...] = ()
    holds: tuple[str, ...] = ()  # paths of the loader's locks that its code can reach


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The process and the machine at the moment of capture."""

    cpus: int
    python: str
    torch: str
    threads: tuple[ThreadFacts, ...]
    native_threads: int
    pools: tuple[Mapping[str, Any], ...]
    accelerator: str | None
    shm_free: int | None
    descriptors: int
    descriptors_used: int
    memory: int | None
    temporary: str
    interactive: bool  # __main__ has no file that a new process could import
    opened: Mapping[str, Place] = field(default_factory=dict)  # for each open file, the line that opened it
    idle_variables: Mapping[str, str] = field(default_factory=dict)
    late_variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceReading:
    """Facts from the source code, which is not run."""

    excepts: tuple[tuple[Place, str, str], ...] = ()  # (place, what it catches, what it does)
    guarded: bool = True  # False: `__main__` reaches the loader without a main guard
    in_loop: bool = False  # the loader is iterated inside another loop
    epochs: int | None = None  # iterations of that loop, if the source has a number
    iterated_once: bool = False  # no loop iterates it a second time
    remade_at: Place | None = None  # next(iter(loader)) inside a loop
    kept_batches: tuple[Place, str] | None = None  # where the loop stores whole batches: line, name of the variable
    set_epoch: bool = False
    cycled_at: Place | None = None  # itertools.cycle over the loader
    # attributes of the dataset that the program reads, and those that it sets inside a loop
    reads: Mapping[str, Place] = field(default_factory=dict)
    writes: Mapping[str, Place] = field(default_factory=dict)


@dataclass(slots=True)
class Case:
    """One loader and everything known about it."""

    loader: LoaderFacts
    process_facts: ProcessFacts
    parts: tuple[Part, ...] = ()
    arguments: tuple[WorkerArgument, ...] = ()
    reading: SourceReading = field(default_factory=SourceReading)
    trials: list[Trial] = field(default_factory=list)
    # second trials of the same plans, run after a change had removed the failure
    repeats: list[Trial] = field(default_factory=list)
    # the change that removed a freeze; later trials use it to find further problems
    unfreezing_change: Mapping[str, Any] = field(default_factory=dict)
    # the same loader in the watched program
    watched_loader: WatchedLoader | None = None
    program: ProgramFacts | None = None

    def tried(self, plan: Plan) -> Trial | None:
        """Return the trial of this plan, if there was one."""
        return next((trial for trial in self.trials if trial.plan == plan), None)

    def repeated(self, plan: Plan) -> Trial | None:
        """Return the second trial of this plan, if there was one."""
        return next((trial for trial in self.repeats if trial.plan == plan and trial.outcome != "refused"), None)

    def rates(self, *plans: Plan) -> tuple[float, float]:
        """Return the samples per second of two measured plans; 0 for one that was not measured."""
        first, second = (one.rate if (one := self.tried(plan)) is not None else 0.0 for plan in plans)
        return first, second

    def find(self, **wanted: Any) -> Trial | None:
        """Return the first trial whose plan has these values and no other change."""
        return next(self.all(**wanted), None)

    def all(self, **wanted: Any) -> Iterator[Trial]:
        """Yield every trial whose plan has these values and no other change."""
        for trial in self.trials:
            plain = Plan(
                trial.plan.workers, trial.plan.start, epochs=trial.plan.epochs, seconds=trial.plan.seconds,
                limit=trial.plan.limit,
            )  # fmt: skip
            if trial.plan == replace(plain, **wanted) and trial.outcome != "refused":
                yield trial

    @property
    def alone(self) -> Trial | None:
        """The trial without workers that skips bad samples; with the `eased` change if any."""
        return self.find(workers=0, tolerant=True, **self.unfreezing_change) or self.first_alone

    @property
    def first_alone(self) -> Trial | None:
        """The trial without workers that skips bad samples, and changes nothing else."""
        return self.find(workers=0, tolerant=True)

    @property
    def as_is(self) -> Trial | None:
        """The trial with the program's own number of workers and no change."""
        return self.find(workers=self.loader.num_workers) if self.loader.num_workers else None

    @property
    def compared(self) -> Trial | None:
        """The trial with workers to compare with `alone`: skipping bad samples, else `as_is`."""
        if not self.loader.num_workers:
            return None
        wanted: dict[str, Any] = {"workers": self.loader.num_workers, **self.unfreezing_change}
        return self.find(tolerant=True, **wanted) or self.find(**wanted) or self.as_is

    @property
    def forked(self) -> bool:
        """Whether the workers are forked."""
        return self.loader.num_workers > 0 and self.loader.start_method == "fork"

    @property
    def drains(self) -> bool:
        """Whether loading consumes data that cannot be read again: from a queue, a pipe or perhaps a socket."""
        return bool(self.connections) or any(
            (part.kind == "queue" and part.state.between_processes)
            or (part.kind == "handle" and part.state.target.startswith("pipe:"))
            for part in self.parts
        )

    @property
    def connections(self) -> list[Part]:
        """The sockets that the dataset holds."""
        return [part for part in self.kinds("handle") if part.state.target.startswith("socket:")]

    def part(self, path: str) -> Part | None:
        """Return the part at this path."""
        return next((part for part in self.parts if part.path == path), None)

    @property
    def shared_locks(self) -> list[Part]:
        """Locks that processes share."""
        return [part for part in self.kinds("lock") if part.state.between_processes]

    def kinds(self, *kinds: str) -> list[Part]:
        """Return the parts of these kinds."""
        return [part for part in self.parts if part.kind in kinds]
