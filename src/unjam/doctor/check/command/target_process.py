"""Starts the examined program, and sends requests to it."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
from multiprocessing.connection import Connection, Pipe

from unjam.deadlines import DOCTOR_ALIVE, PROGRAM_CLEANUP
from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram
from unjam.doctor.check.processes import child_command, kill_session
from unjam.doctor.check.target.twin import GatherFacts, ProgramEnded, ReachedIter, RunTrial, Shutdown, StartMeasuring
from unjam.system import exits
from unjam.system.children import reap


class TargetProcess(CapturedProgram):
    """A program that is stopped at its first iter()."""

    def __init__(self, arguments: list[str]) -> None:
        """Start the program in a new interpreter. The arguments are those of `target.program`."""
        super().__init__()
        self._control, agents_end = Pipe()
        self._twin, twins_end = Pipe()
        self._reached_iter = False
        fds = agents_end.fileno(), twins_end.fileno()
        command = child_command("unjam.doctor.check.target.program", *map(str, fds), self.folder, *arguments)
        with agents_end, twins_end:
            self.pid = self._start_program(command, self.files.environment(), stdin=subprocess.DEVNULL, pass_fds=fds)

    def _about_files(self) -> str:
        return f"\n{text}" if (text := self.protection()) else ""

    # -- requests ----------------------------------------------------------------------------------

    def wait_for_loader(self) -> int:
        """Wait until the program reaches its first iter(). Returns how many loaders it has then."""
        while not self._control.poll(DOCTOR_ALIVE.seconds / 4):
            code = reap(self.pid, 0)
            if code is not None and not self._control.poll(0):
                self.gone = True
                raise CannotExamine(
                    f"the program ended ({exits.short(code)}) before it iterated a DataLoader\n{self.output()}{self._about_files()}"
                )
        try:
            answer = pickle.loads(self._control.recv_bytes())
        except (EOFError, OSError) as error:
            self.gone = True
            code = reap(self.pid, PROGRAM_CLEANUP.seconds)
            how = "it closed its connection" if code is None else exits.short(code)
            raise CannotExamine(
                f"the program ended ({how}) before it iterated a DataLoader\n{self.output()}{self._about_files()}"
            ) from error
        match answer:
            case ReachedIter(loaders):
                self._reached_iter = True
                return loaders
            case ProgramEnded(code, trace):
                what = "failed" if code else "ended"
                raise CannotExamine(f"the program {what} before it iterated a DataLoader\n{trace or self.output()}")
            case other:
                raise CannotExamine(f"unexpected answer from the program: {other!r}")

    def _channel(self, request: GatherFacts | RunTrial | StartMeasuring) -> Connection:
        in_place = isinstance(request, RunTrial) and request.setup.plan.in_place
        return self._control if in_place else self._twin

    def end(self) -> None:
        """Ask the program to exit, then kill what is left and remove its files."""
        for channel in (self._twin, self._control):
            with contextlib.suppress(OSError):
                channel.send(Shutdown())
            channel.close()
        if not self.gone and self._reached_iter:  # before that it reads no requests
            reap(self.pid, PROGRAM_CLEANUP.seconds)
        kill_session(self.pid)
        self._remove_files()
