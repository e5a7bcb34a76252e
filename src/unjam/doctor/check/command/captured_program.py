"""A captured program: it answers requests for facts about its loaders and for trials of them."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from unjam.deadlines import GATHER_FACTS, NEW_INTERPRETER, PROGRAM_CHECK, PROGRAM_CLEANUP
from unjam.doctor.check.cleanup_process import CleanupProcess, record_session, remove_program
from unjam.doctor.check.command.assemble import assemble
from unjam.doctor.check.command.measuring_process import MeasuringProcess
from unjam.doctor.check.command.trial_watch import TrialTimeouts, watch
from unjam.doctor.check.processes import adopt_orphans, end_session, pause
from unjam.doctor.check.target.observer import observed_environment
from unjam.doctor.check.target.twin import GatherFacts, RunTrial, SandboxStarted, StartMeasuring
from unjam.doctor.check.trial.tracking import HidingHandlers, TrialSetup
from unjam.doctor.check.trial.trial_resources import missing
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Plan, Trial
from unjam.system import exits
from unjam.system.children import reap
from unjam.system.isolation.program_files import ProgramFiles
from unjam.system.leftovers import persistent_folders, prefix, sweep
from unjam.system.proc_files import read_end, stat_fields


class CannotExamine(Exception):
    """The program cannot be examined. The message says why."""


class CheckInterrupted(KeyboardInterrupt):
    """Ctrl-C during a trial. trial: what is known of it so far."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class CapturedProgram:
    """A program with twins that answer requests. Loaders are numbered from 0."""

    def __init__(self, *, may_be_real: bool = False) -> None:
        """may_be_real: if the user's files cannot be protected from the program's writes, run it anyway."""
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
        self.gone = False  # whether the program has ended

    def protection(self) -> str:
        """What the protection of the user's files did not cover, as a message; "" if it covered everything."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            self.files.not_covered = ProgramFiles.load(self.folder).not_covered  # saved by the program's first process
        if self._refusals is not None:
            self.files.refused = list(self._refusals.named)
        return self.files.description()

    def refused_changes(self) -> list[str]:
        """Refused writes below the current folder. Elsewhere they are usually caches, which the program can do without."""
        named = list(self._refusals.named) if self._refusals is not None else []
        top = os.path.realpath(os.getcwd())
        return [path for path in named if path.startswith(f"{top.rstrip('/')}/") and "/." not in path[len(top) :]]

    def _remove_files(self) -> None:
        if self._refusals is not None:
            self._refusals.close()
        remove_program(self.files.base)
        reap(self._cleanup.dismiss(), PROGRAM_CLEANUP.seconds)

    def _start_program(self, command: list[str], variables: dict[str, str], **options: Any) -> int:
        """Start the program in a session of its own; return its process number."""
        with open(f"{self.folder}/program.output", "wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=observed_environment(variables),
                start_new_session=True, **options,
            )  # fmt: skip
        process.returncode = 0  # `reap` waits for it, not subprocess
        record_session(self.folder, process.pid)
        return process.pid

    def _channel(self, request: GatherFacts | RunTrial | StartMeasuring) -> Connection:
        """The connection to the process that answers this request."""
        raise NotImplementedError

    def gather(self, number: int) -> tuple[Case, HidingHandlers]:
        """Return the facts of one loader, and the handlers in its code that hide errors."""
        folder = self._new_folder()
        leader = self._start(GatherFacts(number, folder))
        code = reap(leader, GATHER_FACTS.seconds)
        end_session(leader, folder)
        try:
            with open(f"{folder}/case", "rb") as file:
                case, handlers = pickle.load(file)
        except (OSError, EOFError) as error:
            text = read_end(f"{folder}/output")
            raise CannotExamine(f"the loader could not be inspected ({exits.short(code)})\n{text}") from error
        return case, handlers

    def run_trial(
        self, number: int, plan: Plan, handlers: HidingHandlers, timeouts: TrialTimeouts, reserve: int
    ) -> Trial:
        """Run one trial."""
        folder = self._new_folder()
        setup = TrialSetup(folder, plan, first=self._unchanged and number not in self._tried, handlers=handlers)
        self._tried.add(number)
        leader = self._start(RunTrial(number, setup))
        if plan.fresh and not self._has_started_fresh(leader, folder):
            end_session(leader, folder)
            note = "the dataset cannot be sent to a new process"
            return Trial(plan, "refused", 0.0, note=note, output=read_end(f"{folder}/output"))
        seen = watch(leader, folder, timeouts, reserve)
        trial = assemble(plan, folder, seen)
        if (not trial.fine or trial.bad) and not plan.in_place and (lacks := missing(folder)):
            trial = replace(trial, outcome="refused", note=lacks)
        shutil.rmtree(folder, ignore_errors=True)
        if plan.in_place:
            self.gone = True
        if seen.interrupted:
            raise CheckInterrupted(trial)
        return trial

    def measuring(self, number: int) -> MeasuringProcess:
        """Start a process that measures settings of a loader one after another."""
        folder = self._new_folder()
        os.mkfifo(f"{folder}/orders", 0o600)
        return MeasuringProcess(self._start(StartMeasuring(number, folder)), folder)

    def _has_started_fresh(self, leader: int, folder: str) -> bool:
        """Wait until a new interpreter has rebuilt the loader. Returns whether the loader could be sent to it."""
        until = time.monotonic() + NEW_INTERPRETER.seconds
        while not os.path.exists(f"{folder}/begun") and time.monotonic() < until:
            if stat_fields(leader)[:1] in ([], ["Z"]):
                break
            pause(PROGRAM_CHECK.seconds)
        return os.path.exists(f"{folder}/packed")

    def _start(self, request: GatherFacts | RunTrial | StartMeasuring) -> int:
        channel = self._channel(request)
        try:
            channel.send(request)
            if not channel.poll(GATHER_FACTS.seconds):
                raise CannotExamine("the program no longer responds")
            answer: SandboxStarted = pickle.loads(channel.recv_bytes())
        except (OSError, EOFError) as error:
            self.gone = True
            raise CannotExamine("the program has ended") from error
        if not answer.pid:
            raise CannotExamine(f"cannot start a process for a trial: {answer.reason}")
        record_session(self.folder, answer.pid)
        return answer.pid

    def _new_folder(self) -> str:
        self._trials += 1
        folder = f"{self.folder}/{self._trials}"
        os.mkdir(folder, 0o700)
        return folder

    def output(self) -> str:
        """The end of the program's output."""
        return read_end(f"{self.folder}/program.output")
