"""Starts the program under examination, and sends requests to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram
from unjam.doctor.check.processes import child_command, kill_session, reap
from unjam.doctor.check.target.capture_agent import CaptureAgent
from unjam.doctor.check.target.twin import Caught, Done, Ended, Gather, Measure, Try
from unjam.loader.engine.deadlines import ASK_AGAIN, LET_GO


class TargetProcess(CapturedProgram):
    """A program that is stopped at its first iter()."""

    def __init__(self, begin: Callable[[Connection, Connection, str], int]) -> None:
        super().__init__()
        self._control, agents_end = Pipe()
        self._twin, twins_end = Pipe()
        self._caught = False
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

    def _channel(self, request: Gather | Try | Measure) -> Connection:
        in_place = isinstance(request, Try) and request.setup.plan.in_place
        return self._control if in_place else self._twin

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
