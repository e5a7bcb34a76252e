"""What a captured program answers: facts about its loaders, and trials of them."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from unjam.deadlines import FOLLOW, GATHER, START_FRESH
from unjam.doctor.check.cleanup_process import CleanupProcess, remove_program
from unjam.doctor.check.command.assemble import assemble
from unjam.doctor.check.command.measuring_process import MeasuringProcess
from unjam.doctor.check.command.trial_watch import Patience, watch
from unjam.doctor.check.processes import adopt_orphans, end_session, is_zombie, pause
from unjam.doctor.check.target.twin import Gather, Measure, NotStarted, Started, Try
from unjam.doctor.check.trial.program_world import missing
from unjam.doctor.check.trial.tracking import Setup
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.system.children import reap
from unjam.system.isolation.program_files import ProgramFiles
from unjam.system.leftovers import persistent_folders, prefix, sweep
from unjam.system.proc_files import read_end

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

    def __init__(self, *, may_be_real: bool = False) -> None:
        """may_be_real: if the program's writes cannot be kept from the user's files, let them happen."""
        adopt_orphans()
        sweep(remove_program)
        self.files = ProgramFiles.choose(
            tempfile.mkdtemp(prefix=prefix("check"), dir=persistent_folders()[0]), may_be_real=may_be_real
        )
        self.files.save()
        if self.files.is_risky:
            sys.stderr.write(f"warning: {self.files.description()}\n")
            sys.stderr.flush()
        self.folder = self.files.shared
        self._refusals = self.files.listen()
        self._cleanup = CleanupProcess(self.files.base, self.folder)
        self._trials = 0
        self._unchanged = True  # nothing has used the program's shared memory since the capture
        self._tried: set[int] = set()
        self._gone = False

    def protection(self) -> str:
        """What the user should know about how the files were protected; "" if they were completely."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            self.files.not_covered = ProgramFiles.load(self.folder).not_covered  # the program's first process knows it
        if self._refusals is not None:
            self.files.refused = list(self._refusals.named)
        return self.files.description()

    def refused_changes(self) -> list[str]:
        """Writes below the current folder that were refused: the program may need them. Elsewhere libraries keep their caches."""
        named = list(self._refusals.named) if self._refusals is not None else []
        top = os.path.realpath(os.getcwd())
        return [path for path in named if path.startswith(f"{top.rstrip('/')}/") and "/." not in path[len(top) :]]

    def _remove_files(self) -> None:
        if self._refusals is not None:
            self._refusals.close()
        remove_program(self.files.base)

    def _channel(self, request: Gather | Try | Measure) -> Connection:
        """The connection to the process that answers this request."""
        raise NotImplementedError

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
            text = read_end(f"{folder}/output")
            raise CannotExamine(f"the loader could not be looked at (exit code {code})\n{text}") from error
        return case, tries

    def attempt(self, number: int, plan: Plan, tries: Tries, patience: Patience, reserve: int) -> Trial:
        """Run one trial."""
        folder = self._new_folder()
        setup = Setup(folder, plan, first=self._unchanged and number not in self._tried, tries=tries)
        self._tried.add(number)
        leader = self._start(Try(number, setup))
        if plan.fresh and not self._has_begun_afresh(leader, folder):
            end_session(leader, folder)
            note = "the dataset cannot be sent to a new process"
            return Trial(plan, "refused", 0.0, note=note, output=read_end(f"{folder}/output"))
        seen = watch(leader, folder, patience, reserve)
        trial = assemble(plan, folder, seen)
        if (not trial.fine or trial.bad) and not plan.in_place and (lacks := missing(folder)):
            trial = replace(trial, outcome="refused", note=lacks)
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

    def _has_begun_afresh(self, leader: int, folder: str) -> bool:
        """Wait until a new interpreter has rebuilt the loader; whether the loader could be sent to it."""
        until = time.monotonic() + START_FRESH.seconds
        while not os.path.exists(f"{folder}/begun") and time.monotonic() < until:
            if not os.path.exists(f"/proc/{leader}") or is_zombie(leader):
                break
            pause(FOLLOW.seconds)
        return os.path.exists(f"{folder}/packed")

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
        if isinstance(answer, NotStarted):
            raise CannotExamine(f"a process for a trial cannot be started: {answer.reason}")
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
        return read_end(f"{self.folder}/program.output")
