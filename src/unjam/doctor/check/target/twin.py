"""A fork of the program that keeps the moment of a loader's first iter(), and serves requests.

Every sandbox is a fork of a twin. The program's threads keep running, but the twin has none: a lock
that was held at that moment stays held in the twin. So every trial, however late, starts from the
state in which the program would have started its workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.deadlines import ASK_AGAIN, OBEY_KILL
from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.processes import child_command
from unjam.doctor.check.target import gather as facts
from unjam.doctor.check.target import source_reading
from unjam.doctor.check.trial import sandbox, self_inspection, shared_memory
from unjam.doctor.check.trial.program_world import Server, own_servers
from unjam.doctor.check.trial.tracking import Setup
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.children import reap
from unjam.system.isolation.mounts import CannotIsolate
from unjam.system.isolation.program_files import REAL, ProgramFiles


@dataclass(frozen=True)
class Gather:
    """Asks for the facts of a loader."""

    number: int
    folder: str


@dataclass(frozen=True)
class Try:
    """Asks for a trial."""

    number: int
    setup: Setup


@dataclass(frozen=True)
class Measure:
    """Asks for a process that measures the settings sent through the folder."""

    number: int
    folder: str


@dataclass(frozen=True)
class Release:
    """Asks a twin to close pipes and sockets whose other end the program may wait for."""


@dataclass(frozen=True)
class Done:
    """Says that no request follows: the program may exit."""


@dataclass(frozen=True)
class Caught:
    """The program reached iter() with this many loaders."""

    loaders: int


@dataclass(frozen=True)
class Captured:
    """A running program has a twin for a loader. parent: its process."""

    pid: int
    made: Place | None
    line: int
    parent: int
    loader: int  # its number in that process


@dataclass(frozen=True)
class Started:
    """A sandbox was started."""

    pid: int


@dataclass(frozen=True)
class NotStarted:
    """A sandbox could not be started."""

    reason: str


@dataclass(frozen=True)
class Ended:
    """The program ended without iterating a loader."""

    code: int
    trace: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The files that the program saw. copy: of its changes; "" if there was no room for it."""

    files: ProgramFiles
    copy: str


@dataclass(frozen=True)
class Moment:
    """Loaders and facts that only the program's process has at the moment of capture."""

    loaders: list[Any]
    made: list[Place | None]
    frame: FrameType
    facts: list[facts.Moment]
    environment: dict[str, str]
    files: Snapshot | None = None
    folder: str = ""  # the current folder; the program may remove it later
    servers: tuple[Server, ...] = ()

    def enter_files(self, name: str) -> None:
        """Give this process the files as they were at the moment, for itself."""
        taken = self.files
        if taken is not None and taken.files.isolation != REAL and taken.copy:
            # where even the program's files cannot be covered again, this process shares them
            with contextlib.suppress(CannotIsolate, OSError):
                taken.files.enter(name, taken.copy, self.folder)


def moment_of(
    loaders: list[Any],
    made: list[Place | None],
    frame: FrameType,
    environment: dict[str, str],
    files: Snapshot | None = None,
) -> Moment:
    """Read the facts now; call it in the program's process."""
    moments = [facts.moment(loader) for loader in loaders]
    known = Moment(loaders, made, frame, moments, environment, files, _folder(), own_servers())
    sandbox.captured, sandbox.memory = sandbox.offsets(), shared_memory.snapshot()
    return known


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


class Twin:
    """The doctor's code in a twin."""

    def __init__(self, moment: Moment, channel: Connection) -> None:
        self._moment, self._channel = moment, channel

    def serve(self) -> None:
        """Answer requests until the doctor is done."""
        moment = self._moment
        for wanted in requests(self._channel):
            if isinstance(wanted, Release):
                _release(self._channel.fileno())
                continue
            number = wanted.number if len(moment.loaders) > 1 else 0
            loader = moment.loaders[number]
            if isinstance(wanted, Try):
                wanted.setup.servers = moment.servers
            match wanted:
                case Gather(_, folder):
                    self._fork(functools.partial(self._gather, number, folder), folder)
                case Measure(_, folder):
                    from unjam.doctor.check.trial import measuring  # noqa: PLC0415 - imports torch

                    self._fork(functools.partial(measuring.serve, loader, folder), folder)
                case Try(_, setup) if setup.plan.fresh:
                    self._fork(functools.partial(_start_afresh, loader, setup), setup.folder)
                case Try(_, setup):
                    trial = functools.partial(sandbox.run_trial, loader, setup, facts.roots_of(loader))
                    self._fork(trial, setup.folder)

    def _fork(self, action: Callable[[], None], folder: str) -> None:
        """Run an action in a sandbox, which is a grandchild.

        Its parent exits at once, so the doctor adopts the sandbox and can wait for it.
        """
        try:
            read, write = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._channel.send(NotStarted(str(error.strerror)))
            return
        if pid:
            os.close(write)
            with open(read, "rb") as pipe:
                child = int(pipe.read() or b"0")
            reap(pid, OBEY_KILL.seconds)  # it exits at once
            self._channel.send(Started(child) if child else NotStarted("its process could not be forked"))
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
            self._moment.enter_files(os.path.basename(folder))
            sandbox.confine(folder)
            action()
            code = sandbox.GOODBYE
        except BaseException:  # noqa: BLE001 - printed into the folder's output
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def _gather(self, number: int, folder: str) -> None:
        moment = self._moment
        loader, frame = moment.loaders[number], moment.frame
        roots = facts.roots_of(loader)
        inventory = Inventory(roots)
        self_inspection.names = inventory.names
        case = Case(
            facts.loader_facts(loader, moment.made[number], users_place(frame)),
            facts.process_facts(moment.facts[number], moment.environment),
            inventory.parts(),
            facts.crossings(roots),
            source_reading.read(loader, _frames(outside_doctor(frame)), roots),
        )
        tries = source_reading.tries_in(source_reading.loading_functions(roots))
        with open(f"{folder}/case", "wb") as file:
            pickle.dump((case, tuple((f, a, b, at, done) for f, a, b, at, _, done in tries)), file)


def _release(kept: int) -> None:
    """Close the pipes and sockets of this process: a program that waits for their end can go on."""
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
    """The doctor's requests, until it sends `Done` or is gone."""
    while True:
        if not control.poll(ASK_AGAIN.seconds):
            continue
        try:
            wanted = pickle.loads(control.recv_bytes())
        except (EOFError, OSError):
            return
        if isinstance(wanted, Done):
            return
        yield wanted


def outside_doctor(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not the doctor's."""
    while frame is not None and is_doctors(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of the program, innermost first, without those that run the program."""
    found = []
    while frame is not None and frame.f_code.co_filename != CAPTURE:
        found.append(frame)
        frame = frame.f_back
    return found


def _start_afresh(loader: Any, setup: Setup) -> None:
    """Replace this process by a new interpreter that gets the loader's parts and inherits nothing."""
    folder = setup.folder
    with open(f"{folder}/setup", "wb") as file:
        pickle.dump(setup, file)
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
        "at": time.monotonic(),
    }
    with open(f"{folder}/path", "w", encoding="utf-8") as known:
        json.dump([str(entry) for entry in sys.path], known)
    with open(f"{folder}/packed.part", "wb") as file:
        cloudpickle.dump(parts, file)
    os.rename(f"{folder}/packed.part", f"{folder}/packed")
