"""Everything the doctor knows of one loader: what was captured, what was read in the source, what the trials showed.

Facts only. The rules judge them; nothing here does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unjam.doctor.facts.trial import Place, Plan, Trial
from unjam.system.stacks import Frame


@dataclass(frozen=True, slots=True)
class Part:
    """Something that the dataset (or its collate function, or the code they call) holds.

    kind: "lock", "semaphore", "handle", "generator", "thread", "executor", "queue", "objects" (many Python objects) or
    "array". `path` is written as the user would: `dataset.reader.lock`. `place` is the line that set it.
    """

    path: str
    kind: str
    type_name: str
    place: Place | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Crossing:
    """How one argument of a worker takes being pickled. `reason` is empty where it can be."""

    name: str
    path: str = ""
    type_name: str = ""
    reason: str = ""
    place: Place | None = None
    nbytes: int = 0
    back: str = ""  # why it could not be read again, though it was written


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """The loader as the program made it."""

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
    pins_for_nobody: bool  # pin_memory=True, and no accelerator
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
    order_repeats: bool = False  # two passes over the sampler give one order, and set_epoch changes it
    list_reused: bool = False  # the batch sampler yields one list again and again
    driver: str = "torch"  # or "unjam": whose class it is
    main_class: bool = False  # the dataset's class, or a function it needs, is of __main__


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """A Python thread of the captured process besides the main one."""

    name: str
    frames: tuple[Frame, ...] = ()
    holds: tuple[str, ...] = ()  # paths of locks that its code uses


@dataclass(frozen=True, slots=True)
class World:
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
    idle_variables: Mapping[str, str] = field(default_factory=dict)
    late_variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the source says, without running it. Each is (place, words or names)."""

    excepts: tuple[tuple[Place, str, str], ...] = ()  # (place, what is caught, what is done)
    guarded: bool = True  # the loop over the loader is under the main guard, or in a function
    in_loop: bool = False  # the loader is iterated inside another loop
    epochs: int | None = None  # how often that loop goes round, where the program says so
    once: bool = False  # nothing around it would iterate it a second time
    remade: Place | None = None  # next(iter(loader)) inside a loop
    kept: tuple[Place, str] | None = None  # the loop keeps whole batches
    set_epoch: bool = False
    reads: Mapping[str, Place] = field(default_factory=dict)  # attributes of the dataset read by the program
    writes: Mapping[str, Place] = field(default_factory=dict)  # attributes of the dataset set inside the loop


@dataclass(slots=True)
class Case:
    """One loader, and all that is known of it."""

    loader: LoaderFacts
    world: World
    parts: tuple[Part, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    reading: Reading = field(default_factory=Reading)
    trials: list[Trial] = field(default_factory=list)
    again: Trial | None = None  # as it is, once more, after a change had removed the failure
    eased: Mapping[str, Any] = field(default_factory=dict)  # the change that let a frozen loader go on, to see further

    def tried(self, plan: Plan) -> Trial | None:
        """The trial of a plan, if there was one."""
        return next((trial for trial in self.trials if trial.plan == plan), None)

    def find(self, **wanted: Any) -> Trial | None:
        """The first trial whose plan has these values and no other change."""
        return next(self.all(**wanted), None)

    def all(self, **wanted: Any) -> Iterator[Trial]:
        """Every trial whose plan has these values and no other change."""
        for trial in self.trials:
            plain = Plan(
                trial.plan.workers, trial.plan.start, epochs=trial.plan.epochs, seconds=trial.plan.seconds,
                limit=trial.plan.limit,
            )  # fmt: skip
            if trial.plan == replace(plain, **wanted) and trial.outcome != "refused":
                yield trial

    @property
    def alone(self) -> Trial | None:
        """Without workers, bad samples left out; where that freezes, with the change that lets it go on."""
        return (self.find(workers=0, tolerant=True, **self.eased) if self.eased else None) or self.first_alone

    @property
    def first_alone(self) -> Trial | None:
        """Without workers, bad samples left out, and nothing else changed."""
        return self.find(workers=0, tolerant=True)

    @property
    def as_is(self) -> Trial | None:
        """With the program's own workers and nothing changed."""
        return next(
            (t for t in self.all(workers=self.loader.num_workers) if self.loader.num_workers),
            None,
        )

    @property
    def compared(self) -> Trial | None:
        """With workers, to compare with `alone`: as it is, or with bad samples left out where they end it."""
        if not self.loader.num_workers:
            return None
        workers = self.loader.num_workers
        if self.eased:
            through = self.find(workers=workers, tolerant=True, **self.eased) or self.find(
                workers=workers, **self.eased
            )
            return through or self.as_is
        return self.find(workers=workers, tolerant=True) or self.as_is

    @property
    def forked(self) -> bool:
        """Whether the workers are forked."""
        return self.loader.num_workers > 0 and self.loader.start_method == "fork"

    @property
    def drains(self) -> bool:
        """Whether loading takes from something that cannot be given back: a queue between processes, a pipe, a socket."""
        return any(
            (part.kind == "queue" and part.facts.get("between_processes"))
            or (part.kind == "handle" and str(part.facts.get("target", "")).startswith(("pipe:", "socket:")))
            for part in self.parts
        )

    def part(self, path: str) -> Part | None:
        """The part at a path."""
        return next((part for part in self.parts if part.path == path), None)

    def kinds(self, *kinds: str) -> list[Part]:
        """The parts of some kinds."""
        return [part for part in self.parts if part.kind in kinds]
