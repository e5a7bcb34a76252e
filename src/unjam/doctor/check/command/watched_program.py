"""Runs an unmodified program, and watches it from outside until it ends, fails, freezes or runs out of time."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from unjam.deadlines import DOCTOR_ALIVE, GATHER_FACTS, PROGRAM_CHECK, PROGRAM_CLEANUP, PROGRAM_EXIT
from unjam.doctor.check.cleanup_process import WATCH_VARIABLE, record_session
from unjam.doctor.check.command.assemble_watched import assemble_watched
from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram
from unjam.doctor.check.command.program_sampler import ProgramSampler
from unjam.doctor.check.command.trial_watch import TrialTimeouts, timeout_factor
from unjam.doctor.check.event_log import SUFFIX, progress
from unjam.doctor.check.processes import (
    Usage,
    child_command,
    kill_program,
    kill_session,
    pause,
    program_processes,
    seconds_queued,
)
from unjam.doctor.check.target.launch_watched import EDITS, REFUSED
from unjam.doctor.check.target.observer import MAY_END, STOP_EARLY, WAITS_AT_END
from unjam.doctor.check.target.twin import ClosePipes, GatherFacts, RunTrial, Shutdown, StartMeasuring, TwinReady
from unjam.doctor.check.target.twin_fork import SOCKET
from unjam.doctor.check.trial.tracking import HidingHandlers
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedProcess
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.trial import Plan, Trial
from unjam.doctor.why.families import families_of
from unjam.doctor.why.observe import observe
from unjam.system.children import reap
from unjam.system.isolation.program_files import REAL, VIEW
from unjam.system.memory_limits import available_memory
from unjam.system.private_files import is_own_peer, own_folder
from unjam.system.proc_files import read_text

# a normal time without an event, in seconds
QUIET = 1.0
# seconds without an event after which a program that waits, or computes, may be frozen
WAITING, COMPUTING = 6.0, 20.0
# the same before the first loader is used: the program may be preparing its data
EARLY = 60.0
LONGEST_START = 300.0
# a program that uses more than this share of a processor counts as computing
COMPUTES = 0.3
RESERVE = 256 << 20


class WatchedProgram(CapturedProgram):
    """An unmodified program, and the twins that were forked from it while it ran."""

    def __init__(
        self,
        command: list[str],
        *,
        may_be_real: bool = False,
        stdin: bytes | None = None,
        edits: dict[str, str] | None = None,
        stop_early: bool = False,
    ) -> None:
        """stop_early: each process of the program ends when it first uses a loader."""
        super().__init__(may_be_real=may_be_real)
        if edits and self.files.isolation != VIEW:
            self._remove_files()
            reason = self.files.reason
            raise CannotExamine(f"an edit can only be tried where the program's file writes are isolated ({reason})")
        if stop_early:
            _create(f"{self.folder}/{STOP_EARLY}")
        if edits:
            with open(f"{self.folder}/{EDITS}", "w", encoding="utf-8") as file:
                json.dump(edits, file)
        self._unchanged = False
        self._sampler = ProgramSampler()
        self._twins: list[Connection] = []
        self.captured: list[TwinReady] = []  # the twins, in the order of the loaders' first iter()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with own_folder(self.folder) as at:  # the address of a socket must be short
            self._listener.bind(f"{at}/{SOCKET}")
        self._listener.listen(64)
        self._listener.settimeout(0)
        self._waits_at_end = self._pipes_closed = False
        self.interrupted = False  # by Ctrl-C; set by `watch`
        with open(f"{self.folder}/stdin", "wb") as file:
            file.write(stdin or b"")
        launched = child_command("unjam.doctor.check.target.launch_watched", self.folder, *command)
        variables = {**self.files.environment(), WATCH_VARIABLE: self.folder}
        with open(f"{self.folder}/stdin", "rb") as given:
            self.pid = self._start_program(launched, variables, stdin=given)

    # -- watching ----------------------------------------------------------------------------------

    def watch(self, seconds: float, factor: float = 1.0) -> ProgramFacts:
        """Watch the program for about this many seconds of loading. factor: for the timeouts."""
        began = time.monotonic()
        try:
            outcome, code, scene = self._until_it_stops(seconds, factor)
        except KeyboardInterrupt:
            self.interrupted = True
            outcome, code, scene = "stopped", None, self._scene() if self._has_begun() else None
        if os.path.exists(refused := f"{self.folder}/{REFUSED}"):
            reason = read_text(refused) or "unknown reason"
            raise CannotExamine(f"cannot protect your files from the program: {reason}")
        self._await_twins()
        for one in self._alive():
            self.files.note_if_full(one.pid)
        if outcome == "stopped":
            self._suspend()
        watched = self._assembled(outcome, code, time.monotonic() - began)
        watched.scene = scene
        return watched

    def first_loaders(self, seconds: float) -> list[WatchedProcess]:
        """Wait until each process of a program with `stop_early` has used its first loader; return what is known then."""
        reap(self.pid, seconds)
        return assemble_watched(self.folder)

    def _until_it_stops(self, seconds: float, factor: float) -> tuple[str, int | None, Scene | None]:
        """Return the outcome, the exit code, and what the processes of a frozen program are doing."""
        began = changed = time.monotonic()
        size, loading = -1, 0.0
        cpu, looked = 0.0, 0.0
        while True:
            self._take_twins()
            code = reap(self.pid, PROGRAM_CHECK.seconds)
            now = time.monotonic()
            if code is not None or self._has_reached_end():
                return "ended", code, None
            alive = self._alive()
            if not loading and self._has_begun():
                loading = changed = now
            self._sampler.sample([one for one in alive if one.pid in self._recorded()])
            grown = progress(self.folder)
            if grown != size:
                size, changed, cpu = grown, now, sum(one.cpu for one in alive) + seconds_queued(alive)
            quiet, used = now - changed, sum(one.cpu for one in alive) + seconds_queued(alive) - cpu
            free = available_memory()
            if (
                (free is not None and free < RESERVE)
                # a silence that has begun is watched for longer
                or (loading and now - loading > seconds + (COMPUTING + WAITING if quiet > QUIET else 0.0))
                or (not loading and now - began > LONGEST_START)
            ):
                return "stopped", None, None
            timeout = self._timeout(alive, quiet, used, factor if loading else None)
            if quiet < QUIET or now - max(looked, changed) < timeout:
                continue
            looked = now
            if not self._pipes_closed and self._twins and used < COMPUTES * quiet:
                self._close_pipes_of_twins()
                continue
            scene = self._scene()
            if scene is not None and (used < COMPUTES * quiet or _stuck_in_sample(scene)):
                return "frozen", None, replace(scene, quiet=quiet)

    def _timeout(self, alive: list[Usage], quiet: float, used: float, factor: float | None) -> float:
        """How long it may be quiet. factor: None before the first loader is used: imports take long on a busy disk."""
        if factor is None:
            return LONGEST_START if used > 0.05 * quiet else EARLY * timeout_factor(alive, quiet, WAITING)
        if used > COMPUTES * quiet:
            return COMPUTING * factor
        if self._pipes_closed:
            return 1.0
        return WAITING * factor * timeout_factor(alive, quiet, WAITING)

    def _assembled(self, outcome: str, code: int | None, seconds: float) -> ProgramFacts:
        processes = assemble_watched(self.folder)
        if outcome == "ended" and (code or any(f.stage == "end" for one in processes for f in one.failures)):
            outcome = "failed"
        for process in processes:
            process.lock_files = [
                one for one in process.lock_files if os.path.exists(f"/proc/{self.pid}/root{one.path}")
            ]
        kept, observations = self.files.isolation == REAL, self._sampler.facts()
        return ProgramFacts(
            outcome, code, seconds, processes, self.output(), files_kept=kept, observations=observations
        )

    def _take_twins(self) -> None:
        take = self._listener.accept  # its timeout is 0: it never blocks
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = take()
                if not is_own_peer(connection):
                    connection.close()
                    continue
                channel = Connection(connection.detach())
                if channel.poll(GATHER_FACTS.seconds):
                    known = pickle.loads(channel.recv_bytes())
                    assert isinstance(known, TwinReady)
                    record_session(self.folder, known.pid)
                    self._twins.append(channel)
                    self.captured.append(known)

    def _await_twins(self) -> None:
        """Accept the twins that were forked and have not connected yet."""
        until = time.monotonic() + DOCTOR_ALIVE.seconds
        while time.monotonic() < until:
            self._take_twins()
            begun = [
                name for name in os.listdir(self.folder) if name.startswith("twin-") and not name.endswith(".error")
            ]
            if len(self.captured) >= len(begun):
                break
            pause(PROGRAM_CHECK.seconds)

    def _close_pipes_of_twins(self) -> None:
        """Close the copies of the program's pipes that twins hold: the program may be waiting for them."""
        self._pipes_closed = True
        for twin in self._twins:
            with contextlib.suppress(OSError):
                twin.send(ClosePipes())

    def _has_begun(self) -> bool:
        return any(name.startswith("twin-") for name in os.listdir(self.folder)) or bool(self._twins)

    def _has_reached_end(self) -> bool:
        self._waits_at_end = read_text(f"{self.folder}/{WAITS_AT_END}") == str(self.pid)
        return self._waits_at_end

    def _alive(self) -> list[Usage]:
        """The program's processes, without twins and trials."""
        ours = {known.pid for known in self.captured}
        return [one for one in program_processes(self.files.base) if one.pid not in ours and one.session not in ours]

    def _suspend(self) -> None:
        """Stop the processes that load and train. The program's servers continue, because trials may need them."""
        recorded = self._recorded()
        for one in self._alive():
            if one.pid in recorded:
                with contextlib.suppress(OSError):
                    os.kill(one.pid, signal.SIGSTOP)

    def _recorded(self) -> set[int]:
        """The processes that write events: Python processes that load or train."""
        names = [name.removesuffix(SUFFIX) for name in os.listdir(self.folder) if name.endswith(SUFFIX)]
        return {int(name) for name in names if name.isdecimal()}

    def _scene(self) -> Scene | None:
        found = families_of(self.pid)
        return observe(found[0]) if found else None

    def let_end(self, watched: ProgramFacts) -> None:
        """Let a program that waits at its end exit, and check whether it does."""
        if not self._waits_at_end:
            return
        _create(f"{self.folder}/{MAY_END}")
        self._dismiss_twins()
        if reap(self.pid, PROGRAM_EXIT.seconds) is None:
            watched.scene = self._scene()
            if watched.scene is not None and reap(self.pid, DOCTOR_ALIVE.seconds) is None:
                watched.outcome = "frozen"

    # -- replay ------------------------------------------------------------------------------------

    def run_trial(
        self, number: int, plan: Plan, handlers: HidingHandlers, timeouts: TrialTimeouts, reserve: int
    ) -> Trial:
        """Run one trial."""
        if plan.in_place:
            return Trial(plan, "refused", 0.0, note="the program itself has continued")
        return super().run_trial(number, plan, handlers, timeouts, reserve)

    def _channel(self, request: GatherFacts | RunTrial | StartMeasuring) -> Connection:
        return self._twins[request.number]

    def _dismiss_twins(self) -> None:
        for twin in self._twins:
            with contextlib.suppress(OSError):
                twin.send(Shutdown())
            twin.close()
        for known in self.captured:
            if reap(known.pid, PROGRAM_CLEANUP.seconds) is None:
                kill_session(known.pid)
        self._twins, self.captured = [], []

    def end(self) -> None:
        """Kill what is left of the program and its twins, and remove its files."""
        self._dismiss_twins()
        kill_program(self.files.base)
        kill_session(self.pid)
        self._listener.close()
        self._remove_files()


def _create(path: str) -> None:
    with open(path, "w", encoding="ascii"):
        pass


def _stuck_in_sample(scene: Scene) -> bool:
    """Whether a process has been computing in the same sample."""
    return any(
        one.activity.stage in ("sample", "collate", "sampler")
        and one.same_sample
        and one.threads
        and one.thread.computes
        for one in scene.processes
    )


def program_command(target: str, arguments: list[str], *, module: bool) -> list[str]:
    """The command line that runs a target as the user would."""
    python = [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    if module:
        return [*python, "-m", target, *arguments]
    if target.endswith(".ipynb"):
        return child_command("unjam.doctor.check.target.notebook", target)
    if target == "-" or os.path.isfile(target):
        return [*python, target, *arguments]
    launcher = shutil.which(target)
    if launcher is not None:
        with open(launcher, "rb") as file:
            if b"python" in file.readline(200):
                return [*python, launcher, *arguments]  # torchrun, accelerate
    raise CannotExamine(f"there is no file {target}")
