"""What a captured program answers: facts about its loaders, and trials of them."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection

from unjam.doctor.check.cleanup_process import CleanupProcess
from unjam.doctor.check.command.assemble import assemble
from unjam.doctor.check.command.measuring_process import MeasuringProcess
from unjam.doctor.check.command.trial_watch import Patience, watch
from unjam.doctor.check.processes import adopt_orphans, child_command, end_session, reap
from unjam.doctor.check.target.twin import Gather, Measure, Started, Try
from unjam.doctor.check.trial.tracking import Setup
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.loader.engine.deadlines import GATHER, START_FRESH
from unjam.system.leftovers import prefix, sweep

Tries = tuple[tuple[str, int, int, int, str], ...]


class CannotExamine(Exception):
    """The program cannot be examined. The text says why."""


class CheckInterrupted(KeyboardInterrupt):
    """Ctrl-C during a trial. `trial` has what it showed until then."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class CapturedProgram:
    """A program with twins that answer requests. Loaders are numbered from 0."""

    def __init__(self) -> None:
        adopt_orphans()
        sweep()
        self.folder = tempfile.mkdtemp(prefix=prefix("check"))
        self._cleanup = CleanupProcess(self.folder)
        self._trials = 0
        self._unchanged = True  # nothing has used the program's shared memory since the capture
        self._tried: set[int] = set()
        self._gone = False

    def _channel(self, request: Gather | Try | Measure) -> Connection:
        """The connection to the process that answers this request."""
        raise NotImplementedError

    def _fresh_arguments(self, number: int) -> list[str]:  # noqa: ARG002 - others use it
        """Further arguments of a process that inherits nothing."""
        return []

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
        setup = Setup(folder, plan, first=self._unchanged and number not in self._tried, tries=tries)
        self._tried.add(number)
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
            leader = self._start_fresh(number, setup)
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

    def _start_fresh(self, number: int, setup: Setup) -> int:
        with open(f"{setup.folder}/setup", "wb") as file:
            pickle.dump(setup, file)
        process = subprocess.Popen(
            child_command("unjam.doctor.check.trial.fresh", setup.folder, *self._fresh_arguments(number)),
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
        channel = self._channel(request)
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


def _tail(path: str, most: int = 4000) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()[-most:]
    except OSError:
        return ""
