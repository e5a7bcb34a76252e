"""A fork of the program at a loader's first iter(), which serves requests.

Every sandbox is a fork of a twin. The program's threads continue to run, but the twin has none: a lock
that was held at the fork stays held in the twin. So every trial, however late, starts from the state in
which the program would have started its workers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.deadlines import DOCTOR_ALIVE, SIGKILL_GRACE
from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.processes import child_command
from unjam.doctor.check.target import gather, source_reading
from unjam.doctor.check.target.observer import current_folder
from unjam.doctor.check.trial import sandbox, self_inspection, shared_memory
from unjam.doctor.check.trial.tracking import TrialSetup
from unjam.doctor.check.trial.trial_resources import Server, own_servers
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.children import reap
from unjam.system.isolation.mounts import CannotIsolate
from unjam.system.isolation.program_files import REAL, ProgramFiles


@dataclass(frozen=True)
class GatherFacts:
    """A request for the facts of a loader."""

    number: int
    folder: str


@dataclass(frozen=True)
class RunTrial:
    """A request for a trial."""

    number: int
    setup: TrialSetup


@dataclass(frozen=True)
class StartMeasuring:
    """A request for a process that measures the settings sent through the folder."""

    number: int
    folder: str


@dataclass(frozen=True)
class ClosePipes:
    """A request to a twin: close the pipes and sockets whose end the program may wait for."""


@dataclass(frozen=True)
class Shutdown:
    """The last request: the program may exit."""


@dataclass(frozen=True)
class ReachedIter:
    """The program reached iter() with this many loaders."""

    loaders: int


@dataclass(frozen=True)
class TwinReady:
    """A running program has a twin for a loader. parent: the process that was forked."""

    pid: int
    parent: int
    loader: int  # its number in that process


@dataclass(frozen=True)
class SandboxStarted:
    """A sandbox was started; or it could not be started (pid 0), and why."""

    pid: int
    reason: str = ""


@dataclass(frozen=True)
class ProgramEnded:
    """The program ended without iterating a loader."""

    code: int
    trace: str = ""


@dataclass(frozen=True)
class FileSnapshot:
    """The files that the program saw. copy: of its changes; "" if there was no space for it."""

    files: ProgramFiles
    copy: str


@dataclass(frozen=True)
class Capture:
    """The loaders, and what only the program's process knows at their first iter()."""

    loaders: list[Any]
    made: list[Place | None]
    frame: FrameType
    facts: list[dict[str, Any]]  # of `gather.process_snapshot`, for each loader
    environment: dict[str, str]
    files: FileSnapshot | None = None
    folder: str = ""  # the current folder; the program may remove it later
    servers: tuple[Server, ...] = ()

    def enter_files(self, name: str) -> None:
        """Give this process its own view of the files as they were at the capture."""
        taken = self.files
        if taken is not None and taken.files.isolation != REAL and taken.copy:
            # where a view of the program's files is impossible, this process shares them
            with contextlib.suppress(CannotIsolate, OSError):
                taken.files.enter(name, taken.copy, self.folder)


def capture(
    loaders: list[Any],
    made: list[Place | None],
    frame: FrameType,
    environment: dict[str, str],
    files: FileSnapshot | None = None,
) -> Capture:
    """Read the facts now; to be called in the program's process."""
    known = [gather.process_snapshot(loader) for loader in loaders]
    captured = Capture(loaders, made, frame, known, environment, files, current_folder() or "/", own_servers())
    sandbox.captured_offsets, sandbox.captured_memory = sandbox.file_offsets(), shared_memory.snapshot()
    return captured


class Twin:
    """The doctor's code in a twin."""

    def __init__(self, captured: Capture, channel: Connection) -> None:
        self._captured, self._channel = captured, channel

    def serve(self) -> None:
        """Answer requests until the doctor is done."""
        captured = self._captured
        for wanted in requests(self._channel):
            if isinstance(wanted, ClosePipes):
                _close_pipes(self._channel.fileno())
                continue
            number = wanted.number if len(captured.loaders) > 1 else 0
            loader = captured.loaders[number]
            if isinstance(wanted, RunTrial):
                wanted.setup.servers = captured.servers
            match wanted:
                case GatherFacts(_, folder):
                    self._fork(functools.partial(self._gather, number, folder), folder)
                case StartMeasuring(_, folder):
                    from unjam.doctor.check.trial import measuring  # noqa: PLC0415 - imports torch

                    self._fork(functools.partial(measuring.serve, loader, folder), folder)
                case RunTrial(_, setup) if setup.plan.fresh:
                    self._fork(functools.partial(_start_fresh, loader, setup), setup.folder)
                case RunTrial(_, setup):
                    trial = functools.partial(sandbox.run_trial, loader, setup, gather.roots_of(loader))
                    self._fork(trial, setup.folder)

    def _fork(self, action: Callable[[], None], folder: str) -> None:
        """Run an action in a sandbox, which is a grandchild.

        Its parent exits at once, so the doctor adopts the sandbox and can wait for it.
        """
        try:
            read, write = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._channel.send(SandboxStarted(0, str(error.strerror)))
            return
        if pid:
            os.close(write)
            with open(read, "rb") as pipe:
                child = int(pipe.read() or b"0")
            reap(pid, SIGKILL_GRACE.seconds)  # it exits at once
            self._channel.send(SandboxStarted(child, "" if child else "its process could not be forked"))
            return
        os.close(read)
        try:
            grandchild = os.fork()
        except OSError:
            os._exit(0)
        if grandchild:
            os.write(write, str(grandchild).encode())
            os._exit(0)
        os.close(write)
        code = 1
        try:
            self._captured.enter_files(os.path.basename(folder))
            sandbox.confine(folder)
            action()
            code = sandbox.EXIT_OK
        except BaseException:  # noqa: BLE001 - printed into the folder's output
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def _gather(self, number: int, folder: str) -> None:
        captured = self._captured
        loader, frame = captured.loaders[number], captured.frame
        roots = gather.roots_of(loader)
        inventory = Inventory(roots)
        self_inspection.object_names = inventory.names
        handlers = source_reading.hiding_handlers(source_reading.loading_functions(roots))
        case = Case(
            gather.loader_facts(loader, captured.made[number], users_place(frame)),
            gather.process_facts(captured.facts[number], captured.environment),
            inventory.parts(),
            gather.worker_arguments(roots),
            source_reading.read(loader, _frames(frame), handlers),
        )
        with open(f"{folder}/case", "wb") as file:
            pickle.dump((case, tuple((f, a, b, at, done) for f, a, b, at, _, done in handlers)), file)


def _close_pipes(kept: int) -> None:
    """Close the pipes and sockets of this process: a program that waits for their end can continue."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            mode = os.fstat(fd).st_mode
            if fd > 2 and fd != kept and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                os.close(fd)


# the file whose frame runs the program
CAPTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "capture_agent.py")


def is_doctors(file: str) -> bool:
    """Whether a file belongs to `unjam check` itself."""
    return file.startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def requests(control: Connection) -> Iterator[Any]:
    """The doctor's requests, until it sends `Shutdown` or is gone."""
    while True:
        if not control.poll(DOCTOR_ALIVE.seconds):
            continue
        try:
            wanted = pickle.loads(control.recv_bytes())
        except (EOFError, OSError):
            return
        if isinstance(wanted, Shutdown):
            return
        yield wanted


def _frames(frame: FrameType) -> list[FrameType]:
    """The frames of the program, innermost first, without the doctor's own and those that run the program."""
    calls = (one for one, _ in traceback.walk_stack(frame))
    outside = itertools.dropwhile(lambda one: is_doctors(one.f_code.co_filename), calls)
    return list(itertools.takewhile(lambda one: one.f_code.co_filename != CAPTURE, outside))


def _start_fresh(loader: Any, setup: TrialSetup) -> None:
    """Replace this process by a new interpreter that gets the loader's parts and inherits nothing."""
    folder = setup.folder
    with open(f"{folder}/setup", "wb") as file:
        pickle.dump((setup, [str(entry) for entry in sys.path]), file)
    _pack(loader, folder)
    command = child_command("unjam.doctor.check.trial.fresh", folder)
    os.execv(command[0], command)  # noqa: S606 - our own module


def _pack(loader: Any, folder: str) -> None:
    """Pickle the loader's parts."""
    import cloudpickle  # noqa: PLC0415 - only here

    order = None
    if loader.batch_sampler is not None and not hasattr(loader.dataset, "__iter__"):
        order = [list(batch) for _, batch in zip(range(2000), loader.batch_sampler, strict=False)]
    parts = {
        "dataset": loader.dataset,
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
        "order": order,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
    }
    with open(f"{folder}/packed.part", "wb") as file:
        cloudpickle.dump(parts, file)
    os.rename(f"{folder}/packed.part", f"{folder}/packed")
