"""Starts the program under examination, and sends requests to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from unjam.doctor.check.cleanup_process import CleanupProcess
from unjam.doctor.check.command.assemble import assemble
from unjam.doctor.check.command.measuring_process import MeasuringProcess
from unjam.doctor.check.command.trial_watch import Patience, watch
from unjam.doctor.check.processes import adopt_orphans, child_command, end_session, kill_session, reap
from unjam.doctor.check.target.capture_agent import CaptureAgent, Caught, Done, Ended, Gather, Measure, Started, Try
from unjam.doctor.check.trial.tracking import Setup
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.loader.engine.deadlines import ASK_AGAIN, GATHER, LET_GO, START_FRESH
from unjam.system.leftovers import prefix, sweep

Tries = tuple[tuple[str, int, int, int, str], ...]


class CannotExamine(Exception):
    """The program cannot be examined. The text says why."""


class CheckInterrupted(KeyboardInterrupt):
    """Ctrl-C during a trial. `trial` has what it showed until then."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class TargetProcess:
    """A program under examination."""

    def __init__(self, begin: Callable[[Connection, Connection, str], int]) -> None:
        adopt_orphans()
        sweep()
        self.folder = tempfile.mkdtemp(prefix=prefix("check"))
        self._cleanup = CleanupProcess(self.folder)
        self._control, agents_end = Pipe()
        self._twin, twins_end = Pipe()
        self._trials = 0
        self._tried = False
        self._gone = self._caught = False
        try:
            self.pid = begin(agents_end, twins_end, self.folder)
        finally:
            agents_end.close()
            twins_end.close()
        self._cleanup.note(self.pid)

    # -- starting ----------------------------------------------------------------------------------

    @classmethod
    def from_command(cls, arguments: list[str]) -> TargetProcess:
        """Start a program in a new interpreter. The arguments are those of `target.program`."""

        def begin(agents_end: Connection, twins_end: Connection, folder: str) -> int:
            with open(f"{folder}/program.output", "wb") as output:
                process = subprocess.Popen(
                    child_command(
                        "unjam.doctor.check.target.program",
                        str(agents_end.fileno()),
                        str(twins_end.fileno()),
                        *arguments,
                    ),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(agents_end.fileno(), twins_end.fileno()),
                    start_new_session=True,
                )
            process.returncode = 0  # `reap` waits for it, not subprocess
            return process.pid

        return cls(begin)

    @classmethod
    def from_function(cls, program: Callable[[], Any]) -> TargetProcess:
        """Start a function in a fork of this process."""

        def begin(agents_end: Connection, twins_end: Connection, folder: str) -> int:
            pid = os.fork()
            if pid:
                return pid
            code = 1
            try:
                os.setsid()
                output = os.open(f"{folder}/program.output", os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(output, 1)
                os.dup2(output, 2)
                CaptureAgent(agents_end, twins_end).run(program)
                code = 0
            finally:
                os._exit(code)

        return cls(begin)

    # -- requests ----------------------------------------------------------------------------------

    def wait(self, tick: Callable[[], None]) -> int:
        """Wait until the program reaches its first iter(). Returns how many loaders it has then."""
        while not self._control.poll(ASK_AGAIN.seconds / 4):
            tick()
            code = reap(self.pid, 0)
            if code is not None and not self._control.poll(0):
                self._gone = True
                raise CannotExamine(
                    f"the program ended (exit code {code}) before it iterated a DataLoader\n{self.output()}"
                )
        match pickle.loads(self._control.recv_bytes()):
            case Caught(loaders):
                self._caught = True
                return loaders
            case Ended(code, trace):
                what = "failed" if code else "ended"
                raise CannotExamine(f"the program {what} before it iterated a DataLoader\n{trace or self.output()}")
            case other:
                raise CannotExamine(f"the program said something strange: {other!r}")

    def gather(self, number: int) -> tuple[Case, Tries]:
        """Gather the facts of one loader."""
        folder = self._new_folder()
        leader = self._start(Gather(number, folder))
        code = reap(leader, GATHER.seconds)
        end_session(leader, folder)
        try:
            with open(f"{folder}/case", "rb") as file:
                case, tries = pickle.load(file)
        except (OSError, EOFError) as error:
            text = _tail(f"{folder}/output")
            raise CannotExamine(f"the loader could not be looked at (exit code {code})\n{text}") from error
        return case, tries

    def attempt(self, number: int, plan: Plan, tries: Tries, patience: Patience, reserve: int) -> Trial:
        """Run one trial."""
        folder = self._new_folder()
        setup = Setup(folder, plan, first=not self._tried, tries=tries)
        self._tried = True
        leader = self._start(Try(number, setup))
        if plan.fresh:
            reap(leader, GATHER.seconds)
            end_session(leader, folder)
            if not os.path.exists(f"{folder}/packed"):
                return Trial(
                    plan,
                    "refused",
                    0.0,
                    note="the dataset cannot be sent to a new process",
                    output=_tail(f"{folder}/output"),
                )
            leader = self._start_fresh(setup)
        seen = watch(leader, folder, patience, reserve)
        trial = assemble(plan, folder, seen)
        shutil.rmtree(folder, ignore_errors=True)
        if plan.in_place:
            self._gone = True
        if seen.interrupted:
            raise CheckInterrupted(trial)
        return trial

    def measuring(self, number: int) -> MeasuringProcess:
        """Start a process that measures settings of a loader, one after another."""
        folder = self._new_folder()
        os.mkfifo(f"{folder}/orders", 0o600)
        return MeasuringProcess(self._start(Measure(number, folder)), folder)

    def _start_fresh(self, setup: Setup) -> int:
        with open(f"{setup.folder}/setup", "wb") as file:
            pickle.dump(setup, file)
        process = subprocess.Popen(
            child_command("unjam.doctor.check.trial.fresh", setup.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        process.returncode = 0
        self._cleanup.note(process.pid)
        until = time.monotonic() + START_FRESH.seconds
        while (
            not os.path.exists(f"{setup.folder}/begun")
            and time.monotonic() < until
            and os.path.exists(f"/proc/{process.pid}")
        ):
            signal.sigtimedwait([], 0.05)
        return process.pid

    def _start(self, request: Gather | Try | Measure) -> int:
        in_place = isinstance(request, Try) and request.setup.plan.in_place
        channel = self._control if in_place else self._twin
        try:
            channel.send(request)
            if not channel.poll(GATHER.seconds):
                raise CannotExamine("the program does not answer any more")
            answer = pickle.loads(channel.recv_bytes())
        except (OSError, EOFError) as error:
            self._gone = True
            raise CannotExamine("the program is gone") from error
        if not isinstance(answer, Started):
            raise CannotExamine(f"the program said something strange: {answer!r}")
        self._cleanup.note(answer.pid)
        return answer.pid

    def _new_folder(self) -> str:
        self._trials += 1
        folder = f"{self.folder}/{self._trials}"
        os.mkdir(folder, 0o700)
        return folder

    @property
    def gone(self) -> bool:
        """Whether the program has ended."""
        return self._gone

    def output(self) -> str:
        """The end of the program's output."""
        return _tail(f"{self.folder}/program.output")

    def end(self) -> None:
        """Ask the program to exit, then kill what is left and remove its files."""
        for channel in (self._twin, self._control):
            with contextlib.suppress(OSError):
                channel.send(Done())
            channel.close()
        if not self._gone and self._caught:  # before that it reads no requests
            reap(self.pid, LET_GO.seconds)
        kill_session(self.pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        reap(self._cleanup.dismiss(), LET_GO.seconds)


def _tail(path: str, most: int = 4000) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()[-most:]
    except OSError:
        return ""
