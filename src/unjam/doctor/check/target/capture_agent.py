"""Runs the examined program in its own process until its first iter(loader).

There it forks a twin. Every sandbox is a fork of the twin.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from unjam.doctor.check.target import gather
from unjam.doctor.check.target.first_iter_hook import FirstIterHook, StopProgram
from unjam.doctor.check.target.twin import (
    FileSnapshot,
    ProgramEnded,
    ReachedIter,
    RunTrial,
    SandboxStarted,
    Twin,
    capture,
    is_doctors,
    requests,
)
from unjam.doctor.check.trial import sandbox
from unjam.system.isolation.mounts import CannotIsolate
from unjam.system.isolation.program_files import ProgramFiles

MOST_LOADERS = 4


class CaptureAgent:
    """The doctor's code inside the target process."""

    def __init__(self, control: Connection, twins: Connection, files: ProgramFiles) -> None:
        self._control, self._files = control, files
        self._twins = twins
        self._environment = dict(os.environ)
        self._hook = FirstIterHook(self._on_first_iter)

    def run(self, program: Callable[[], Any]) -> None:
        """Run a program to its first iter(); send `ProgramEnded` if it ends before that."""
        self._hook.install()
        trace, code = "", 0
        try:
            self._protect_files()
            program()
        except StopProgram:
            return
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1 if end.code else 0
            trace = str(end.code) if isinstance(end.code, str) else ""
        except BaseException as error:  # noqa: BLE001 - reported, whatever it is
            code, trace = 1, _program_traceback(error)
        if self._hook.open:
            with contextlib.suppress(OSError):
                self._control.send(ProgramEnded(code, trace[-6000:]))

    def _protect_files(self) -> None:
        try:
            self._files.enter()
        except (CannotIsolate, OSError) as error:
            raise SystemExit(f"cannot protect your files from the program: {error}") from error
        self._files.save()

    def examine(self, loaders: list[Any]) -> None:
        """Serve requests for loaders that no program iterates."""
        self._serve(loaders, sys._getframe(1))  # noqa: SLF001 - the caller's frame

    def _on_first_iter(self, loader: Any, frame: FrameType) -> None:
        loaders = [loader]
        for other in list(self._hook.made):
            if len(loaders) < MOST_LOADERS and not any(_alike(other, known) for known in loaders):
                loaders.append(other)
        self._serve(loaders, frame)
        raise StopProgram(0)

    def _serve(self, loaders: list[Any], frame: FrameType) -> None:
        self._hook.open = False
        snapshot = FileSnapshot(self._files, self._files.snapshot("twin"))
        made = [self._hook.made.get(one) for one in loaders]
        captured = capture(loaders, made, frame, self._environment, snapshot)
        if os.fork() == 0:
            try:
                Twin(captured, self._twins).serve()
            finally:
                os._exit(0)
        self._control.send(ReachedIter(len(loaders)))
        for wanted in requests(self._control):
            if isinstance(wanted, RunTrial):
                self._control.send(SandboxStarted(os.getpid()))
                sandbox.run_trial(loaders[wanted.number], wanted.setup, gather.roots_of(loaders[wanted.number]))
            return


def _program_traceback(error: BaseException) -> str:
    """The traceback of an error, without the doctor's frames that ran the program."""
    trace = error.__traceback__
    while trace is not None and is_doctors(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _alike(one: Any, other: Any) -> bool:
    """Whether examining both loaders would give the same result."""
    return one is other or (
        one.dataset is other.dataset and one.num_workers == other.num_workers and one.collate_fn is other.collate_fn
    )
