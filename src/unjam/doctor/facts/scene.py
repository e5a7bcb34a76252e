"""A running program observed from outside: its processes and threads, and what each waits for.

These are facts only. The rules decide what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unjam.doctor.facts.trial import Place, SyncObject, place_of
from unjam.system.stacks import Frame
from unjam.system.waiting import Waiting

# a thread that used more than this share of a processor during the observation counts as computing
BUSY = 0.3
# so does, on a busy machine, a thread that used this share and was runnable for most of the time
BUSY_IN_QUEUE, RUNNABLE = 0.08, 0.7


@dataclass(frozen=True, slots=True)
class Holder:
    """A thread that holds a lock, according to the source of its stack."""

    pid: int
    tid: int
    thread: str
    place: Place
    expression: str
    itself: bool = False  # the holder is the waiting thread itself
    same: bool = True  # False: only the attribute names match, the objects may differ


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process is doing, according to its stack.

    loader: "torch", "unjam", "pool" (multiprocessing or concurrent.futures), "process" (a child of
    multiprocessing) or "".
    stage of a worker: "start", "init", "made", "idle", "sample", "collate", "send", "end", "task".
    stage of a main process: "waits" (for a batch), "sampler", "starting", "stopping" or "elsewhere". A main
    process that loads a sample itself has a worker's stage.
    """

    loader: str = ""
    stage: str = ""
    index: str = ""
    number: int = -1
    batch: int = -1
    workers: int = 0
    first: bool = False  # the first sample of its batch


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. rested: seconds since it last ran. busy: its share of a processor."""

    tid: int
    name: str
    waiting: Waiting
    rested: float | None = None
    busy: float = 0.0
    frames: tuple[Frame, ...] = ()
    values: tuple[Mapping[str, str], ...] = ()
    libraries: tuple[str, ...] = ()
    native: bool = False  # a native library waits, not Python
    steady: bool = True  # all observations found the same stack
    syncs: tuple[SyncObject, ...] = ()
    peers: tuple[str, ...] = ()  # processes at the other end of what it waits for
    peer_pids: tuple[int, ...] = ()
    alone: bool = False  # no other process has the other end open
    holders: tuple[Holder, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)  # observations at each line of user code
    context_switches: int = 0  # voluntary context switches during the observation
    queueing: float = 0.0  # share of the time in which it was runnable but had no processor

    @property
    def place(self) -> Place | None:
        """The innermost line of user code."""
        return place_of(self.frames)

    @property
    def computes(self) -> bool:
        """Whether it used the processor during the observation."""
        return self.busy > BUSY or (self.busy > BUSY_IN_QUEUE and self.busy + self.queueing > RUNNABLE)

    @property
    def ends_soon(self) -> bool:
        """Whether its wait has a timeout that expires within a minute."""
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
    activity: Activity = field(default_factory=Activity)
    forked: bool = False
    rank: str = ""
    number: int = -1  # of several main processes: by start time, for those without a rank
    main: int = 0  # the main process that it belongs to
    open_files: int = 0
    most_files: int = 0
    stack_error: str = ""  # why its stacks could not be read
    connected: tuple[int, ...] = ()  # other main processes that it has socket connections with
    gpu: bool = False  # it has a GPU device file open
    log: str = ""  # where its standard error goes, if that is a file
    last_error: str = ""  # the last line there that mentions an error or exception
    ignores_sigterm: bool = False  # it ignores SIGTERM
    handles_sigterm: bool = False  # it has a handler for SIGTERM
    same_sample: bool = True  # all observations found it in the same sample
    # main process: seconds since a worker sent it anything; worker: seconds since it got work
    silent: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it has exited, and its parent has not reaped it yet."""
        return self.state in ("Z", "X")

    @property
    def thread(self) -> Thread:
        """The main thread, or the thread that uses the loader."""
        return self.threads[0]

    @property
    def name(self) -> str:
        """The name for messages."""
        if self.role == "worker":
            known = f"worker {self.activity.number}" if self.activity.number >= 0 else "a worker"
            return f"{known} (pid {self.pid})"
        if self.role == "main":
            alone = "the main process" if self.number < 0 else f"main process {self.number}"
            return f"rank {self.rank} (pid {self.pid})" if self.rank else f"{alone} (pid {self.pid})"
        return f"pid {self.pid} ({self.command})"


@dataclass(frozen=True, slots=True)
class Scene:
    """All processes of one program, observed for a few seconds."""

    processes: tuple[Process, ...]
    seconds: float
    refused: str = ""  # why stacks cannot be read
    remedy: str = ""  # how to allow it
    cpus: int = 1
    shm: tuple[int, int] = (0, 0)  # free and total bytes of /dev/shm, as the program sees it
    memory_left: int | None = None
    quiet: float = 0.0  # in a watched program, seconds without any progress before the observation
    kills: int = 0  # out-of-memory kills so far, from the kernel's counter

    @property
    def mains(self) -> list[Process]:
        """The main process, or all ranks in order."""
        found = [one for one in self.processes if one.role == "main"]
        return sorted(found, key=lambda one: (int(one.rank) if one.rank.isdecimal() else one.number, one.pid))

    def workers(self, main: Process | None = None) -> list[Process]:
        """Return the workers of one main process, or all workers."""
        return [one for one in self.processes if one.role == "worker" and (main is None or one.main == main.pid)]

    def find(self, pid: int) -> Process | None:
        """Return the process with this pid."""
        return next((one for one in self.processes if one.pid == pid), None)

    def children(self, process: Process) -> list[Process]:
        """Return the direct children of a process."""
        return [one for one in self.processes if one.parent == process.pid]

    def main_of(self, process: Process) -> Process:
        """Return the main process that a process belongs to."""
        return next((one for one in self.mains if one.pid == process.main), process)
