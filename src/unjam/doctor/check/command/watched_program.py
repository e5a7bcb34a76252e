"""Runs a program as it is, and watches it from outside until it ends, fails, freezes or the time is up."""

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
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from unjam.deadlines import ASK_AGAIN, EXIT, FOLLOW, GATHER, LET_GO
from unjam.doctor.check.command.assemble_watched import assemble_watched
from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram
from unjam.doctor.check.command.program_looks import ProgramLooks
from unjam.doctor.check.command.trial_watch import patience_factor
from unjam.doctor.check.processes import Usage, child_command, kill_program, kill_session, of_program, pause, queued
from unjam.doctor.check.target.launch_watched import EDITS, REFUSED
from unjam.doctor.check.target.observer import BRIEF, GO, HELD, VARIABLE, observed_environment
from unjam.doctor.check.target.twin import Captured, Done, Gather, Measure, Release, Try
from unjam.doctor.check.target.twin_fork import SOCKET
from unjam.doctor.check.trial.event_log import SUFFIX, progress
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.trial import Plan, Trial
from unjam.doctor.facts.watched import Watched, WatchedProcess
from unjam.doctor.why.families import families_of
from unjam.doctor.why.observe import observe
from unjam.system.children import reap
from unjam.system.isolation.program_files import REAL, VIEW
from unjam.system.memory_limits import available_memory
from unjam.system.private_files import is_own_peer, own_folder

# seconds without an event in which any program may do something else
QUIET = 1.0
# seconds without an event after which waiting, or computing, processes are looked at
WAITING, COMPUTING = 6.0, 20.0
# the same before the first loader is used: the program prepares its data
EARLY = 60.0
LONGEST_START = 300.0
# a program that uses more than this share of a processor computes
COMPUTES = 0.3
RESERVE = 256 << 20


class WatchedProgram(CapturedProgram):
    """A program that runs as it is, and the twins of it that were forked on the way."""

    def __init__(
        self,
        command: list[str],
        *,
        may_be_real: bool = False,
        stdin: bytes | None = None,
        edits: dict[str, str] | None = None,
        brief: bool = False,
    ) -> None:
        super().__init__(may_be_real=may_be_real)
        if edits and self.files.isolation != VIEW:
            self._remove_files()
            reap(self._cleanup.dismiss(), LET_GO.seconds)
            raise CannotExamine(f"an edit can only be tried in an isolated view of the files ({self.files.reason})")
        if brief:
            with open(f"{self.folder}/{BRIEF}", "w", encoding="ascii"):
                pass
        if edits:
            with open(f"{self.folder}/{EDITS}", "w", encoding="utf-8") as file:
                json.dump(edits, file)
        self._unchanged = False
        self._looks = ProgramLooks()
        self._twins: list[Connection] = []
        self._known: list[Captured] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with own_folder(self.folder) as at:  # a long path does not fit into an address
            self._listener.bind(f"{at}/{SOCKET}")
        self._listener.listen(64)
        self._listener.settimeout(0)
        self._held = self._released = False
        self.interrupted = False  # by Ctrl-C, known after `follow`
        self.pid = self._begin(command, stdin)
        self._cleanup.note(self.pid)

    def _begin(self, command: list[str], stdin: bytes | None) -> int:
        entry = f"{self.folder}/stdin"
        with open(entry, "wb") as file:
            file.write(stdin or b"")
        with open(f"{self.folder}/program.output", "wb") as output, open(entry, "rb") as words:
            process = subprocess.Popen(
                child_command("unjam.doctor.check.target.launch_watched", self.folder, *command),
                stdin=words,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=observed_environment({**self.files.environment(), VARIABLE: self.folder}),
                start_new_session=True,
            )
        process.returncode = 0  # `reap` waits for it, not subprocess
        return process.pid

    # -- watching ----------------------------------------------------------------------------------

    def follow(self, seconds: float, tick: Callable[[], None], hurry: float = 1.0) -> Watched:
        """Watch the program for about so many seconds of loading."""
        began = time.monotonic()
        try:
            outcome, code, scene = self._until_it_stops(seconds, tick, hurry)
        except KeyboardInterrupt:
            self.interrupted = True
            outcome, code, scene = "stopped", None, self._scene() if self._has_begun() else None
        refused = self._why_refused()
        if refused:
            raise CannotExamine(f"cannot protect your files from the program: {refused}")
        self._await_twins()
        for one in self._alive():
            self.files.note_if_full(one.pid)
        if outcome == "stopped":
            self._suspend()
        watched = self._assembled(outcome, code, time.monotonic() - began)
        watched.scene = scene
        return watched

    def first_loaders(self, seconds: float, tick: Callable[[], None]) -> list[WatchedProcess]:
        """Wait until a brief run is at its first loader in each process; what it has is known then."""
        until = time.monotonic() + seconds
        while reap(self.pid, FOLLOW.seconds) is None and time.monotonic() < until:
            tick()
        return assemble_watched(self.folder)

    def _until_it_stops(
        self, seconds: float, tick: Callable[[], None], hurry: float
    ) -> tuple[str, int | None, Scene | None]:
        """Return the outcome, the exit code, and what the processes of a frozen program do."""
        began = changed = time.monotonic()
        size, loading = -1, 0.0
        cpu, looked = 0.0, 0.0
        while True:
            tick()
            self._take_twins()
            code = reap(self.pid, FOLLOW.seconds)
            now = time.monotonic()
            if code is not None or self._is_held():
                return "ended", code, None
            alive = self._alive()
            if not loading and self._has_begun():
                loading = changed = now
            self._looks.take([one for one in alive if one.pid in self._recorded()])
            grown = progress(self.folder)
            if grown != size:
                size, changed, cpu = grown, now, sum(one.cpu for one in alive) + queued(alive)
            quiet, used = now - changed, sum(one.cpu for one in alive) + queued(alive) - cpu
            free = available_memory()
            if (
                (free is not None and free < RESERVE)
                # a silence is followed to its end
                or (loading and now - loading > seconds + (COMPUTING + WAITING if quiet > QUIET else 0.0))
                or (not loading and now - began > LONGEST_START)
            ):
                return "stopped", None, None
            patience = self._patience(alive, quiet, used, hurry if loading else None)
            if quiet < QUIET or now - max(looked, changed) < patience:
                continue
            looked = now
            if not self._released and self._twins and used < COMPUTES * quiet:
                self._release()
                continue
            scene = self._scene()
            if scene is not None and (used < COMPUTES * quiet or _stuck_in_sample(scene)):
                return "frozen", None, replace(scene, quiet=quiet)

    def _patience(self, alive: list[Usage], quiet: float, used: float, hurry: float | None) -> float:
        """How long it may be quiet. hurry: a factor; None: no loader is used yet, and imports take long on a busy disk."""
        if hurry is None:
            return LONGEST_START if used > 0.05 * quiet else EARLY * patience_factor(alive, quiet, WAITING)
        if used > COMPUTES * quiet:
            return COMPUTING * hurry
        if self._released:
            return 1.0
        return WAITING * hurry * patience_factor(alive, quiet, WAITING)

    def _assembled(self, outcome: str, code: int | None, seconds: float) -> Watched:
        processes = assemble_watched(self.folder)
        if outcome == "ended" and (code or any(f.stage == "end" for one in processes for f in one.failures)):
            outcome = "failed"
        for process in processes:
            process.exclusive = [one for one in process.exclusive if os.path.exists(f"/proc/{self.pid}/root{one.path}")]
        return Watched(
            outcome,
            code,
            seconds,
            processes,
            self.output(),
            files_kept=self.files.isolation == REAL,
            looks=self._looks.facts(),
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
                if channel.poll(GATHER.seconds):
                    known = pickle.loads(channel.recv_bytes())
                    assert isinstance(known, Captured)
                    self._cleanup.note(known.pid)
                    self._twins.append(channel)
                    self._known.append(known)

    def _await_twins(self) -> None:
        """Take the twins that were begun and have not connected yet."""
        until = time.monotonic() + ASK_AGAIN.seconds
        while time.monotonic() < until:
            self._take_twins()
            begun = [
                name for name in os.listdir(self.folder) if name.startswith("twin-") and not name.endswith(".error")
            ]
            if len(self._known) >= len(begun):
                break
            pause(FOLLOW.seconds)

    def _release(self) -> None:
        """A twin holds copies of the program's pipes: without them the program may go on."""
        self._released = True
        for twin in self._twins:
            with contextlib.suppress(OSError):
                twin.send(Release())

    def _has_begun(self) -> bool:
        return any(name.startswith("twin-") for name in os.listdir(self.folder)) or bool(self._twins)

    def _is_held(self) -> bool:
        try:
            with open(f"{self.folder}/{HELD}", encoding="ascii") as file:
                self._held = file.read() == str(self.pid)
        except OSError:
            self._held = False
        return self._held

    def _alive(self) -> list[Usage]:
        """The program's processes, without twins and trials."""
        ours = {known.pid for known in self._known}
        return [one for one in of_program(self.files.base) if one.pid not in ours and one.session not in ours]

    def _suspend(self) -> None:
        """Stop what loads and trains; servers of the program go on, because trials may need them."""
        recorded = self._recorded()
        for one in self._alive():
            if one.pid in recorded:
                with contextlib.suppress(OSError):
                    os.kill(one.pid, signal.SIGSTOP)

    def _recorded(self) -> set[int]:
        """The processes that write events: those of Python that load or train."""
        names = [name.removesuffix(SUFFIX) for name in os.listdir(self.folder) if name.endswith(SUFFIX)]
        return {int(name) for name in names if name.isdecimal()}

    def _scene(self) -> Scene | None:
        found = families_of(self.pid)
        return observe(found[0]) if found else None

    def finish(self, watched: Watched) -> None:
        """Let a program that waits at its end go, and see whether it gets there."""
        if not self._held:
            return
        with open(f"{self.folder}/{GO}", "w", encoding="ascii"):
            pass
        self._dismiss_twins()
        if reap(self.pid, EXIT.seconds) is None:
            watched.scene = self._scene()
            if watched.scene is not None and reap(self.pid, ASK_AGAIN.seconds) is None:
                watched.outcome = "frozen"

    # -- replay ------------------------------------------------------------------------------------

    @property
    def captured(self) -> list[Captured]:
        """The twins, in the order of the loaders' first iter()."""
        return self._known

    def attempt(self, number: int, plan: Plan, tries: object, patience: object, reserve: int) -> Trial:
        """Run one trial."""
        if plan.in_place:
            return Trial(plan, "refused", 0.0, note="the program itself has gone on")
        return super().attempt(number, plan, tries, patience, reserve)  # type: ignore[arg-type]

    def _channel(self, request: Gather | Try | Measure) -> Connection:
        return self._twins[request.number]

    def _dismiss_twins(self) -> None:
        for twin in self._twins:
            with contextlib.suppress(OSError):
                twin.send(Done())
            twin.close()
        for known in self._known:
            if reap(known.pid, LET_GO.seconds) is None:
                kill_session(known.pid)
        self._twins, self._known = [], []

    def end(self) -> None:
        """End what is left of the program and its twins, and remove its files."""
        self._dismiss_twins()
        kill_program(self.files.base)
        kill_session(self.pid)
        self._listener.close()
        self._remove_files()
        reap(self._cleanup.dismiss(), LET_GO.seconds)

    def _why_refused(self) -> str:
        try:
            with open(f"{self.folder}/{REFUSED}", encoding="utf-8") as file:
                return file.read() or "it cannot be made"
        except OSError:
            return ""


def _stuck_in_sample(scene: Scene) -> bool:
    """Whether a process computes in one sample all the time."""
    return any(
        one.doing.stage in ("sample", "collate", "sampler") and one.same_sample and one.threads and one.thread.computes
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
