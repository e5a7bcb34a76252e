"""What went wrong in a watched program, and what it did beside loading that can be the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unjam.doctor.facts.trial import Place


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that is open, within reach of a failing line.

    path: as the program writes it. kind: "file", "socket", "pipe" or "database". inherited: it was open when the worker
    began, so the worker shares it with the program and with every other worker. opened: the line that opened it.
    """

    path: str
    kind: str
    target: str
    inherited: bool
    opened: Place | None = None


@dataclass(frozen=True, slots=True)
class WatchedFailure:
    """An exception that the program met.

    stage: "constructor", "iter", "sampler", "made" (iter(dataset)), "sample", "collate", "next" (as
    the program got it) or "end" (it ended the program).
    """

    stage: str
    type_name: str
    message: str
    trace: str
    place: Place | None = None
    index: str = ""
    worker: int = -1
    loader: int = 0
    epoch: int = -1
    at: float = 0.0
    pid: int = 0
    errno: int = 0
    filename: str = ""
    thread: str = ""  # the thread that loads, if it is not the main thread
    unpickled: str = ""  # the class whose unpickling failed
    context: str = ""  # the context variable that has no value there
    reach: tuple[Resource, ...] = ()
    files: tuple[str, ...] = ()  # that the sample had read
    root: str = ""  # of a RecursionError: the exception that its handlers had caught first, and its line
    root_at: Place | None = None
    limits: Mapping[str, int] = field(default_factory=dict)  # of the process, where something was used up
    full: tuple[tuple[str, str], ...] = ()  # places for files where something is used up: path, what


@dataclass(frozen=True, slots=True)
class UnreleasedResource:
    """Something that loading a sample took and did not give back.

    kind: "lock", "semaphore", "transaction" or "file" (created so that only one process can create it). raised: the exception
    that ended the sample, or one that was caught in it.
    """

    path: str
    kind: str
    index: str
    worker: int
    pid: int
    place: Place | None
    raised: str
    at: float


@dataclass(frozen=True, slots=True)
class LockFile:
    """A file that a process created so that no other one could, and that was still there when the program froze."""

    path: str
    pid: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class ShrunkFile:
    """A file that is shorter than what is mapped of it. place: the line that opened it last. was_whole: it was not, before."""

    path: str
    mapped: int
    size: int
    place: Place | None
    was_whole: bool = False


@dataclass(frozen=True, slots=True)
class EndedByException:
    """A thread, or a process that multiprocessing started, that ended with an exception."""

    kind: str  # "thread" or "process"
    name: str
    pid: int
    type_name: str
    message: str
    place: Place | None
    at: float


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit that the program set for itself, with the resource module."""

    name: str
    value: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class SeedCall:
    """A call that seeds a global generator. times: how often this line did so in this process."""

    what: str
    place: Place
    pid: int
    worker: int
    at: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class InheritedOutput:
    """A file that a worker's dataset holds open for writing since before the worker began, and that grew."""

    path: str
    pid: int
    worker: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """A file that a sample wrote. locks: its process has locked a file. read: the sample then read it."""

    path: str
    pid: int
    worker: int
    place: Place | None
    locks: bool
    read: bool = True


@dataclass(frozen=True, slots=True)
class FileOperation:
    """What the program did to a file or folder. kind: "removed", "moved", "entered" (as the working folder) or "truncated"."""

    kind: str
    path: str
    place: Place | None  # None: no line of the program called it, but the end of a process
    at: float = 0.0
    worker: int = -1
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LostBatch:
    """Something that a worker gave to a queue and that could not be pickled there. path, kind: the part that cannot."""

    worker: int
    path: str
    kind: str
    type_name: str
    message: str
    place: Place | None
