"""A running program as it was found: its processes, their threads, what each waits for and who could end the wait.

Facts only, gathered from outside. The rules judge them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unjam.doctor.facts.trial import Place, Sync, place_of
from unjam.system.stacks import Frame
from unjam.system.waiting import Waiting

# a thread that used more of a processor than this, over the whole look, computes
BUSY = 0.3
# so does one on a crowded machine that used some of it, and stood in the queue for a processor for most of the rest
BUSY_IN_QUEUE, RUNNABLE = 0.08, 0.7


@dataclass(frozen=True, slots=True)
class Holder:
    """A thread that is inside a lock's `with`, or between its acquire and release, as its source tells."""

    pid: int
    tid: int
    thread: str
    place: Place
    expression: str
    itself: bool = False  # the very thread that waits for it
    same: bool = True  # the same object, not only the same name


@dataclass(frozen=True, slots=True)
class Doing:
    """What a process is about, as its stack tells.

    loader: "torch", "unjam", "pool" (of multiprocessing or concurrent.futures), "process" (a child of multiprocessing)
    or nothing. stage: of a worker "start", "init", "made", "idle", "sample", "collate", "send", "end", "task"; of a main
    process "waits" (for a batch), "starting", "stopping" or "elsewhere"; a main process without workers that is inside a
    sample has a worker's stage.
    """

    loader: str = ""
    stage: str = ""
    index: str = ""
    number: int = -1
    batch: int = -1
    workers: int = 0
    first: bool = False  # the first sample of its batch
    since: float | None = None  # seconds in this sample, where the process itself wrote that down
    through: str = ""  # the function of the library that it waits in, for a stage "elsewhere"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. `rested`: seconds since it last ran; `busy`: its share of a processor while it was looked at."""

    tid: int
    name: str
    waiting: Waiting
    rested: float | None = None
    busy: float = 0.0
    frames: tuple[Frame, ...] = ()
    values: tuple[Mapping[str, str], ...] = ()
    libraries: tuple[str, ...] = ()
    native: bool = False  # the code that waits belongs to a library and not to Python
    steady: bool = True  # every look found the same calls at the same lines
    syncs: tuple[Sync, ...] = ()
    peers: tuple[str, ...] = ()  # who is at the other end of what it waits for
    peer_pids: tuple[int, ...] = ()
    alone: bool = False  # nobody but this process is at the other end
    holders: tuple[Holder, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)  # the user's lines that looks found it at, how often
    looks: int = 0
    turns: int = 0  # how often it went to sleep while it was looked at
    queueing: float = 0.0  # the share of the look in which it could have run and had no processor

    @property
    def place(self) -> Place | None:
        """The innermost line of the user's own."""
        return place_of(self.frames)

    @property
    def computes(self) -> bool:
        """Whether it used the processor while it was looked at."""
        return self.busy > BUSY or (self.busy > BUSY_IN_QUEUE and self.busy + self.queueing > RUNNABLE)

    @property
    def ends_soon(self) -> bool:
        """Whether what it waits for has a time limit that comes within a minute."""
        return self.waiting.limit is not None and self.waiting.limit < 60


@dataclass(frozen=True, slots=True)
class Process:
    """One process. role: "main", "worker", "helper" or "child"."""

    pid: int
    parent: int
    role: str
    command: str
    state: str
    age: float
    rss: int
    busy: float
    threads: tuple[Thread, ...]
    doing: Doing = field(default_factory=Doing)
    forked: bool = False
    rank: str = ""
    number: int = -1  # of several main processes whose rank is not known, in the order of their birth
    main: int = 0  # the main process that it belongs to
    open_files: int = 0
    most_files: int = 0
    blind: str = ""  # why its stacks could not be read
    connected: tuple[int, ...] = ()  # other main processes that it has connections with
    gpu: bool = False  # it has an accelerator's device open
    log: str = ""  # where its standard error goes, if that is a file
    last_error: str = ""  # the last line there that speaks of an error
    cpu: float = 0.0
    same_sample: bool = True  # every look found it in the same sample
    silent: float | None = (
        None  # of a main process: seconds since a worker sent it anything; of a worker: since it got work
    )

    @property
    def ended(self) -> bool:
        """Whether it is dead and only not yet buried."""
        return self.state in ("Z", "X")

    @property
    def thread(self) -> Thread:
        """Its main thread."""
        return self.threads[0]

    @property
    def name(self) -> str:
        """As a person says it."""
        if self.role == "worker":
            known = f"worker {self.doing.number}" if self.doing.number >= 0 else "a worker"
            return f"{known} (pid {self.pid})"
        if self.role == "main":
            alone = "the main process" if self.number < 0 else f"main process {self.number}"
            return f"rank {self.rank} (pid {self.pid})" if self.rank else f"{alone} (pid {self.pid})"
        return f"pid {self.pid} ({self.command})"


@dataclass(frozen=True, slots=True)
class Scene:
    """All processes of one program, looked at for a few seconds."""

    processes: tuple[Process, ...]
    seconds: float
    refused: str = ""  # why stacks cannot be read
    remedy: str = ""  # what would allow it
    cpus: int = 1
    shm: tuple[int, int] = (0, 0)  # bytes free and in all, as the program sees them
    memory_left: int | None = None
    kills: int = 0  # processes that the system killed for memory since it began to count

    @property
    def mains(self) -> list[Process]:
        """The main process, or every rank in order."""
        found = [one for one in self.processes if one.role == "main"]
        return sorted(found, key=lambda one: (int(one.rank) if one.rank.isdecimal() else one.number, one.pid))

    def workers(self, main: Process | None = None) -> list[Process]:
        """The workers of one main process, or all."""
        return [one for one in self.processes if one.role == "worker" and (main is None or one.main == main.pid)]

    def find(self, pid: int) -> Process | None:
        """The process with this number."""
        return next((one for one in self.processes if one.pid == pid), None)

    def children(self, process: Process) -> list[Process]:
        """What a process started itself."""
        return [one for one in self.processes if one.parent == process.pid]

    def main_of(self, process: Process) -> Process:
        """The main process that another belongs to."""
        return next((one for one in self.mains if one.pid == process.main), process)
