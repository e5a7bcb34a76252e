"""Runs the program under examination, in its own process, until its first iter(loader).

There it forks a twin, and every sandbox is a fork of the twin. The program's threads keep running,
but the twin has none: a lock that was held at that moment stays held in the twin. So every trial,
however late, starts from the state in which the program would have started its workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.processes import reap
from unjam.doctor.check.target import gather as facts
from unjam.doctor.check.target import source_reading
from unjam.doctor.check.target.hook import Enough, Hook
from unjam.doctor.check.trial import measuring, sandbox, self_inspection, shared_memory
from unjam.doctor.check.trial.tracking import Setup
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import users_place
from unjam.loader.engine.deadlines import ASK_AGAIN, OBEY_KILL

MOST_LOADERS = 4


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
class Done:
    """Says that no request follows: the program may exit."""


@dataclass(frozen=True)
class Caught:
    """The program reached iter() with this many loaders."""

    loaders: int


@dataclass(frozen=True)
class Started:
    """A sandbox was started."""

    pid: int


@dataclass(frozen=True)
class Ended:
    """The program ended without iterating a loader."""

    code: int
    trace: str = ""


class CaptureAgent:
    """The doctor's code inside of the target process."""

    def __init__(self, control: Connection, twins: Connection) -> None:
        self._control = control
        self._twins = twins
        self._environment = dict(os.environ)
        self._hook = Hook(self._on_first_iter)

    def watch(self) -> None:
        """Catch the first iter() from now on."""
        self._hook.install()

    def run(self, program: Callable[[], Any]) -> None:
        """Run a program to its first iter(); send `Ended` if it ends before that."""
        self.watch()
        trace, code = "", 0
        try:
            program()
        except Enough:
            return
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
            trace = str(end.code) if isinstance(end.code, str) else ""
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            code, trace = 1, _program_traceback(error)
        if self._hook.open:
            with contextlib.suppress(OSError):
                self._control.send(Ended(code, trace[-6000:]))

    def examine(self, loaders: list[Any]) -> None:
        """Serve requests for loaders that no program iterates."""
        frame = sys._getframe(1)  # noqa: SLF001 - the caller's frame
        self._serve(loaders, frame)

    def _on_first_iter(self, loader: Any, frame: FrameType) -> None:
        loaders = [loader]
        for other in list(self._hook.made):
            if len(loaders) < MOST_LOADERS and not any(_alike(other, known) for known in loaders):
                loaders.append(other)
        self._serve(loaders, frame)
        raise Enough(0)

    def _serve(self, loaders: list[Any], frame: FrameType) -> None:
        self._hook.open = False
        moments = [facts.moment(loader) for loader in loaders]
        sandbox.captured, sandbox.memory = sandbox.offsets(), shared_memory.snapshot()
        if os.fork() == 0:
            try:
                self._serve_as_twin(loaders, frame, moments)
            finally:
                os._exit(0)
        self._control.send(Caught(len(loaders)))
        for wanted in _requests(self._control):
            if isinstance(wanted, Try):
                self._control.send(Started(os.getpid()))
                sandbox.run_trial(loaders[wanted.number], wanted.setup, facts.roots_of(loaders[wanted.number]))
            return

    def _serve_as_twin(self, loaders: list[Any], frame: FrameType, moments: list[facts.Moment]) -> None:
        for wanted in _requests(self._twins):
            loader = loaders[wanted.number]
            match wanted:
                case Gather(number, folder):
                    gather = functools.partial(self._gather, loader, frame, moments[number], folder)
                    self._fork(gather, folder)
                case Measure(_, folder):
                    self._fork(functools.partial(measuring.serve, loader, folder), folder)
                case Try(_, setup) if setup.plan.fresh:
                    self._fork(functools.partial(_pack, loader, setup.folder), setup.folder)
                case Try(_, setup):
                    trial = functools.partial(sandbox.run_trial, loader, setup, facts.roots_of(loader))
                    self._fork(trial, setup.folder)

    def _fork(self, action: Callable[[], None], folder: str) -> None:
        """Run an action in a sandbox, which is a grandchild.

        Its parent exits at once, so the doctor adopts the sandbox and can wait for it.
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            with open(read, "rb") as pipe:
                child = int(pipe.read() or b"0")
            reap(pid, OBEY_KILL.seconds)  # it exits at once
            self._twins.send(Started(child))
            return
        os.close(read)
        grandchild = os.fork()
        if grandchild:
            os.write(write, str(grandchild).encode())
            os._exit(0)
        os.close(write)
        code = 1
        try:
            sandbox.confine(folder)
            action()
            code = sandbox.GOODBYE
        except BaseException:  # noqa: BLE001 - printed into the folder's output
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def _gather(self, loader: Any, frame: FrameType, moment: facts.Moment, folder: str) -> None:
        roots = facts.roots_of(loader)
        inventory = Inventory(roots)
        self_inspection.names = inventory.names
        case = Case(
            facts.loader_facts(loader, self._hook.made.get(loader), users_place(frame)),
            facts.process_facts(moment, self._environment),
            inventory.parts(),
            facts.crossings(roots),
            source_reading.read(loader, _frames(_outside_doctor(frame)), roots),
        )
        tries = source_reading.tries_in(source_reading.loading_functions(roots))
        with open(f"{folder}/case", "wb") as file:
            pickle.dump((case, tuple((f, a, b, at, done) for f, a, b, at, _, done in tries)), file)


def _is_doctors(file: str) -> bool:
    """Whether a file belongs to `unjam check` itself."""
    return file.startswith(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep)


def _program_traceback(error: BaseException) -> str:
    """The traceback of an error, without the doctor's frames that ran the program."""
    trace = error.__traceback__
    while trace is not None and _is_doctors(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _requests(control: Connection) -> Iterator[Any]:
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


def _outside_doctor(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not the doctor's."""
    while frame is not None and _is_doctors(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of the program, innermost first, without those that run the program."""
    found = []
    while frame is not None and frame.f_code.co_filename != __file__:
        found.append(frame)
        frame = frame.f_back
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether examining both loaders would show the same."""
    return one is other or (
        one.dataset is other.dataset and one.num_workers == other.num_workers and one.collate_fn is other.collate_fn
    )


def _pack(loader: Any, folder: str) -> None:
    """Pickle the loader's parts for a process that inherits nothing."""
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
