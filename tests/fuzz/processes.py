"""The processes in which a program runs, their time limits and their ends.

This process has torch imported and one thread, so a fresh process is a fork of it. On torch's side each program has one of its own.
On unjam's side a process takes some programs in turn, because its fork server imports torch anew; what it saw before is kept, so that
a difference can be tried again in a fresh process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import forkserver, resource_tracker

import torch

from fuzz import execute
from fuzz.build import HAS_DATAPIPES
from fuzz.program import Program

PROGRAMS_PER_HOST = 25
PR_SET_PDEATHSIG = 1
# seconds
LIMIT, TORCHS_LIMIT, SLOW_LIMIT, SURE_HANG = 25, 10, 60, 4


class Host:
    """A process that runs programs with the class of one side."""

    def __init__(self, side: str):
        self.side = side
        self.programs: list[Program] = []
        self._log = tempfile.TemporaryFile()
        down, self._down = os.pipe()
        self._up, up = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._down)
            os.close(self._up)
            _serve(side, down, up, self._log.fileno())
        os.close(down)
        os.close(up)
        self._read = b""

    def ask(self, program: Program) -> None:
        """Begin with a program."""
        self.programs.append(program)
        try:
            os.write(self._down, program.to_json().encode() + b"\n")
        except BrokenPipeError:
            pass  # the answer will tell

    def answer(self, until: float) -> dict:
        """What it saw; where that takes too long it is ended, and was hung."""
        while b"\n" not in self._read:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._up], [], [], left)[0]:
                self.end()
                return {"hung": True}
            chunk = os.read(self._up, 1 << 20)
            if not chunk:
                status = self.end()
                return {"died": status, "log": self.log()}
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def log(self) -> str:
        """The end of what its processes printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-3000:]

    def end(self) -> int:
        """End it and everything it started; its status."""
        status = 0
        if self.pid:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self.pid, signal.SIGKILL)
            status = os.waitpid(self.pid, 0)[1]
            self.pid = 0
            os.close(self._down)
            os.close(self._up)
        return status


def _serve(side: str, down: int, up: int, log: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, buffering=1)
    try:
        _prepare(side)
        with open(down) as programs:
            for line in iter(programs.readline, ""):
                seen = execute.run(side, Program.from_json(line))
                answer = memoryview(json.dumps(seen).encode() + b"\n")
                while answer:
                    answer = answer[os.write(up, answer) :]
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(3)


def _prepare(side: str) -> None:
    """Start what a process has one of, so that it is not taken for something left behind."""
    multiprocessing.set_forkserver_preload(["torch", "numpy", "PIL.Image"])
    if side == "unjam":
        from unjam.loader.pool import fork_server

        resource_tracker.ensure_running()
        forkserver.ensure_running()
        fork_server.shared()


def prepare_here() -> None:
    """Before the first fork: everything is imported, and no thread runs."""
    torch.set_num_threads(1)
    pipes = ("torch.utils.data.datapipes.iter", "torch.utils.data.datapipes.map") if HAS_DATAPIPES else ()
    for name in (*pipes, "unjam.loader.iterator"):
        importlib.import_module(name)
    # what is imported stays: collections need not walk it
    gc.collect()
    gc.freeze()


class Sides:
    """Runs programs on both sides at once."""

    def __init__(self):
        self._ours: Host | None = None

    def both(self, program: Program, *, fresh: bool = False, slower: int = 1) -> tuple[dict, dict]:
        """What was seen on torch's side and on ours."""
        if fresh or (self._ours is not None and len(self._ours.programs) >= PROGRAMS_PER_HOST):
            self.close()
        if self._ours is None:
            self._ours = Host("unjam")
        theirs = Host("torch")
        begin = time.monotonic()
        self._ours.ask(program)
        theirs.ask(program)
        try:
            # torch first: where it is sure to hang its limit is short
            torchs = theirs.answer(begin + _limit(program, torchs=True) * slower)
            ours = self._ours.answer(begin + _limit(program, torchs=False) * slower)
        finally:
            theirs.end()
        if not self._ours.pid:
            self._ours = None
        return torchs, ours

    def history(self) -> list[Program]:
        """The programs that our side's process has run, the last one included."""
        return [] if self._ours is None else list(self._ours.programs)

    def close(self) -> None:
        """End our side's process."""
        if self._ours is not None:
            self._ours.end()
            self._ours = None


def _limit(program: Program, *, torchs: bool) -> float:
    if torchs and any(hangs_torch(plan) for plan in program.loaders):
        return SURE_HANG
    slow = any(plan.method in ("spawn", "forkserver") for plan in program.loaders)
    return SLOW_LIMIT if slow else TORCHS_LIMIT if torchs else LIMIT


UNPICKLABLE = {"lambda", "generator", "tensor computed with grad"}


def hangs_torch(plan) -> bool:
    """Whether torch waits for ever: an exception or a batch that cannot be pickled."""
    if not plan.workers:
        return False
    error = plan.failure is not None and plan.failure.kind == "local"
    return error or plan.collate == "unpicklable" or not UNPICKLABLE.isdisjoint(plan.data.leaves)
