"""Watches a trial from outside: its progress, its memory and CPU, and a last look before its end.

A trial counts as hung if it records no event for longer than its patience. The patience is short if
all processes wait, longer if they compute, and grows with the slowest known sample. A process that
computes is given seconds of a processor, not of the clock: on a busy machine it gets few of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from unjam.deadlines import TAKE_STACK, WATCH_TRIAL
from unjam.doctor.check.processes import Usage, end_session, pause, queued, session, sweep_shared_memory
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.event_log import progress, read
from unjam.system import stacks, waiting
from unjam.system.children import reap
from unjam.system.memory_limits import OomKills, available_memory, oom_kills
from unjam.system.native_stacks import libraries_on_stack
from unjam.system.proc_files import read_text

# an interrupted trial counts as hung after so many seconds without progress
QUIET = 2.0
# a pause between two events that says nothing, and the share of a processor with which a trial computes
PAUSE, COMPUTES = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds a trial may take without recording an event."""

    waiting: float
    computing: float
    whole: float  # most seconds for the whole trial


@dataclass
class Seen:
    """What was seen of a trial from outside."""

    outcome: str = ""  # "hung", "memory" or "late"; "" if it ended by itself
    code: int | None = None
    seconds: float = 0.0
    looks: list[dict[str, Any]] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    waits: Counter[str] = field(default_factory=Counter)
    waited_on: dict[str, set[int]] = field(
        default_factory=dict
    )  # a socket or pipe: the workers that were found waiting for it
    lock_looks: int = 0
    busy_looks: int = 0
    peak: dict[int, int] = field(default_factory=dict)
    killed: int = 0
    native_threads: int = 0  # most native threads of one worker
    interrupted: bool = False


def watch(leader: int, folder: str, patience: Patience, reserve: int) -> Seen:
    """Watch a trial until it ends or must be ended, then clean up after it."""
    seen = Seen()
    began = time.monotonic()
    kills = oom_kills()
    progressed = _Progress(folder)
    iteration = 0
    try:
        while True:
            seen.code = reap(leader, WATCH_TRIAL.seconds)
            now = time.monotonic()
            alive = session(leader)
            seen.pids.update(one.pid for one in alive)
            if seen.code is not None or (not alive and not os.path.exists(f"/proc/{leader}")):
                break
            for one in alive:
                seen.peak[one.pid] = max(seen.peak.get(one.pid, 0), one.rss)
            _sample_waits(seen, alive, leader, iteration)
            iteration += 1
            free = available_memory()
            if free is not None and free < reserve:
                seen.outcome = "memory"
                break
            if progressed.is_over(alive, patience):
                seen.outcome = "hung"
                break
            if now - began > patience.whole:
                seen.outcome = "late"
                break
    except KeyboardInterrupt:
        seen.interrupted = True
        seen.outcome = "hung" if progressed.quiet > QUIET else "late"
    try:
        if seen.outcome:
            seen.looks = last_look(leader, folder)
    finally:
        end_session(leader, folder)
        sweep_shared_memory(seen.pids)
    seen.killed = _kills_since(kills)
    seen.seconds = time.monotonic() - began
    return seen


class _Progress:
    """When the trial recorded an event last, and what its processes have used since."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._size = -1
        self._changed = time.monotonic()
        self._cpu: dict[int, float] = {}
        self._queued = 0.0

    @property
    def quiet(self) -> float:
        """Seconds without an event."""
        return time.monotonic() - self._changed

    def is_over(self, alive: list[Usage], patience: Patience) -> bool:
        """Whether it has made no progress for longer than the patience."""
        grown = progress(self._folder)
        if grown != self._size:
            self._size, self._changed = grown, time.monotonic()
            self._cpu, self._queued = {one.pid: one.cpu for one in alive}, queued(alive)
        quiet = self.quiet
        if quiet < PAUSE:
            return False
        used = [one.cpu - self._cpu.get(one.pid, 0.0) for one in alive]
        if sum(used) + queued(alive) - self._queued > COMPUTES * quiet:
            return max(used) > patience.computing
        return quiet > patience.waiting * patience_factor(alive, quiet, patience.waiting)


def patience_factor(alive: list[Usage], quiet: float, waits: float) -> float:
    """Factor for the patience: a sleep or child may end by itself, an answer may come."""
    if quiet < waits:
        return 1.0
    kinds = {waiting.look(one.pid).kind for one in alive}
    if len(alive) > 1:
        kinds.discard("child")  # the child is among those that were looked at
    return 4.0 if kinds & {"sleep", "child"} else 2.0 if kinds & {"socket", "disk"} else 1.0


def _kills_since(before: OomKills | None) -> int:
    now = oom_kills()
    return now.count - before.count if now is not None and before is not None else 0


def _sample_waits(seen: Seen, alive: list[Usage], leader: int, iteration: int) -> None:
    """Count what each worker waits for at this moment."""
    for one in alive:
        if one.pid == leader:
            continue
        look = waiting.look(one.pid)
        seen.busy_looks += 1
        on_file = look.kind == "lock" and look.target is not None
        # workers of unjam wait for work at a socket without an address
        is_local = look.kind == "socket" and " to " not in look.words
        seen.waits["file lock" if on_file else "local socket" if is_local else look.kind] += 1
        if look.kind == "lock":
            seen.lock_looks += 1
        if look.kind in ("socket", "pipe") and len(look.fds) == 1:
            with contextlib.suppress(OSError):
                seen.waited_on.setdefault(os.readlink(f"/proc/{one.pid}/fd/{look.fds[0]}"), set()).add(one.pid)
        if iteration % 10 == 3:
            with contextlib.suppress(OSError):
                seen.native_threads = max(seen.native_threads, len(os.listdir(f"/proc/{one.pid}/task")))


def last_look(leader: int, folder: str) -> list[dict[str, Any]]:
    """Describe the processes of a trial before they are killed."""
    alive = session(leader)
    armed = [one for one in alive if os.path.exists(f"{folder}/{one.pid}.stack")]
    # before our signals disturb them: what they wait for, and whether they compute
    waits = {one.pid: waiting.look(one.pid) for one in armed}
    before, began = {one.pid: one.cpu for one in alive}, time.monotonic()
    pause(0.4)
    used = {one.pid: one.cpu - before.get(one.pid, one.cpu) for one in session(leader)}
    elapsed = time.monotonic() - began
    for one in armed:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{one.pid}.look")
        _signal(one.pid, self_inspection.LOOK)
    _wait_until(lambda: all(os.path.exists(f"{folder}/{one.pid}.look") for one in armed))
    found = []
    for one in armed:
        wait = waits[one.pid]
        _signal(one.pid, self_inspection.STACK)
        _wait_until(lambda: read_text(f"{folder}/{one.pid}.stack") != "")  # noqa: B023 - called at once
        pause(0.05)
        own = _read_report(f"{folder}/{one.pid}.look")
        stack = stacks.main_stack(read_text(f"{folder}/{one.pid}.stack"))
        found.append({
            "pid": one.pid,
            "waits": wait.kind,
            "words": wait.words,
            "native": own is None,
            "own": own or {},
            "frames": list(stack.frames) if stack else [],
            "libraries": libraries_on_stack(one.pid),
            "busy": used.get(one.pid, 0.0) > 0.4 * elapsed,
            "events": read(folder).get(one.pid, [])[-3:],
        })  # fmt: skip
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _read_report(path: str) -> dict[str, Any] | None:
    text = read_text(path)
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, dict) else None


def _wait_until(done: Any) -> None:
    until = time.monotonic() + TAKE_STACK.seconds
    while not done() and time.monotonic() < until:
        pause(0.02)
