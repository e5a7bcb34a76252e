"""Failures of a watched program, and other events in it that may have caused them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unjam.doctor.facts.trial import Place


@dataclass(frozen=True, slots=True)
class Resource:
    """An open file, socket, pipe or database that a failing line can reach.

    path: its expression in the program. kind: "file", "socket", "pipe" or "database". inherited: it was open when the worker
    started, so the program and all workers share it. opened: the line that opened it.
    """

    path: str
    kind: str
    target: str
    inherited: bool
    opened: Place | None = None


@dataclass(frozen=True, slots=True)
class WatchedFailure:
    """An exception in the program.

    stage: "constructor", "iter", "sampler", "made" (iter(dataset)), "sample", "collate", "next" (as
    the program received it) or "end" (it ended the program).
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
    thread: str = ""  # the thread that raised it, unless it is the main thread
    unpickled: str = ""  # the class whose unpickling failed
    context: str = ""  # the context variable that has no value in this thread
    reach: tuple[Resource, ...] = ()
    files: tuple[str, ...] = ()  # read by the sample
    root: str = ""  # of a RecursionError: the first exception that a handler caught, and its line
    root_at: Place | None = None
    # of the process, if the error says that a resource is used up
    limits: Mapping[str, int] = field(default_factory=dict)
    full: tuple[tuple[str, str], ...] = ()  # file systems without free space or inodes: path, what is used up


@dataclass(frozen=True, slots=True)
class UnreleasedResource:
    """A resource that loading a sample acquired and did not release.

    kind: "lock", "semaphore", "transaction" or "file" (created with O_EXCL). raised: the exception
    that the sample raised, if any.
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
    """A file that a process created with O_EXCL."""

    path: str
    pid: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class ShrunkFile:
    """A file that is shorter than its mapping. place: the line that last opened it. was_whole: it was once long enough."""

    path: str
    mapped: int
    size: int
    place: Place | None
    was_whole: bool = False


@dataclass(frozen=True, slots=True)
class EndedByException:
    """A thread or a multiprocessing process that ended with an exception."""

    kind: str  # "thread" or "process"
    name: str
    pid: int
    type_name: str
    message: str
    place: Place | None
    at: float


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit that the program set with the resource module."""

    name: str
    place: Place | None


@dataclass(frozen=True, slots=True)
class SeedCall:
    """A call that seeded a global generator."""

    what: str
    place: Place
    pid: int
    worker: int
    at: float


@dataclass(frozen=True, slots=True)
class InheritedOutput:
    """A file that was open for writing when a worker started, and that grew while the worker ran."""

    path: str
    worker: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """A file that a sample wrote. locks: its process has locked some file. read: the sample read it afterwards."""

    path: str
    pid: int
    place: Place | None
    locks: bool
    read: bool = True


@dataclass(frozen=True, slots=True)
class FileOperation:
    """An operation on a file or folder. kind: "removed", "moved", "entered" (as the working folder) or "truncated"."""

    kind: str
    path: str
    place: Place | None  # None: called at the end of a process, not by a line of the program
    at: float = 0.0
    worker: int = -1
    pid: int = 0


@dataclass(frozen=True, slots=True)
class LostBatch:
    """A batch that a worker put into a queue and that could not be pickled. path, kind: the part that cannot."""

    worker: int
    path: str
    kind: str
    type_name: str
    message: str
    place: Place | None
