"""Watches a trial from outside: its progress, memory and CPU time; inspects a stuck trial before it is killed.

A trial counts as hung if it records no event for longer than its timeout. The timeout is short if all
processes wait, longer if they compute, and grows with the slowest known sample. For a process that
computes, the timeout counts its processor time, because a busy machine gives it little.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unjam.deadlines import STACK_DUMP, TRIAL_CHECK
from unjam.doctor.check.event_log import progress
from unjam.doctor.check.processes import (
    Usage,
    end_session,
    pause,
    seconds_queued,
    session_processes,
    sweep_shared_memory,
)
from unjam.doctor.check.trial import self_inspection
from unjam.system import stacks, waiting
from unjam.system.children import reap
from unjam.system.memory_limits import available_memory, oom_kills
from unjam.system.native_stacks import libraries_on_stack
from unjam.system.proc_files import descriptor_target, read_text

# an interrupted trial counts as hung after this many seconds without progress
QUIET = 2.0
# a pause between two events that is normal, and the share of a processor above which a trial counts as computing
PAUSE, COMPUTES = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class TrialTimeouts:
    """How many seconds a trial may take without recording an event, while it waits or computes."""

    waiting: float
    computing: float
    whole: float  # most seconds for the whole trial


@dataclass
class TrialObservation:
    """What was observed of a trial from outside."""

    outcome: str = ""  # "hung", "memory" or "late"; "" if it ended by itself
    code: int | None = None
    seconds: float = 0.0
    reports: list[dict[str, Any]] = field(default_factory=list)  # of stuck processes
    waits: Counter[str] = field(default_factory=Counter)
    waited_on: dict[str, set[int]] = field(default_factory=dict)  # a socket or pipe: the workers that waited for it
    peak: dict[int, int] = field(default_factory=dict)  # of each process, in bytes
    killed: int = 0
    native_threads: int = 0  # most native threads of one worker
    interrupted: bool = False


def watch(leader: int, folder: str, timeouts: TrialTimeouts, reserve: int) -> TrialObservation:
    """Watch a trial until it ends or must be ended, then clean up after it."""
    seen = TrialObservation()
    began = time.monotonic()
    kills_before = oom_kills()
    progressed = _Progress(folder)
    iteration = 0
    try:
        while True:
            seen.code = reap(leader, TRIAL_CHECK.seconds)
            now = time.monotonic()
            alive = session_processes(leader)
            for one in alive:
                seen.peak[one.pid] = max(seen.peak.get(one.pid, 0), one.rss)
            if seen.code is not None or (not alive and not os.path.exists(f"/proc/{leader}")):
                break
            _sample_waits(seen, alive, leader, iteration)
            iteration += 1
            free = available_memory()
            if free is not None and free < reserve:
                seen.outcome = "memory"
                break
            if progressed.is_over(alive, timeouts):
                seen.outcome = "hung"
                break
            if now - began > timeouts.whole:
                seen.outcome = "late"
                break
    except KeyboardInterrupt:
        seen.interrupted = True
        seen.outcome = "hung" if progressed.quiet > QUIET else "late"
    try:
        if seen.outcome:
            seen.reports = inspect_processes(leader, folder)
    finally:
        end_session(leader, folder)
        sweep_shared_memory(set(seen.peak))
    if kills_before is not None and (kills_now := oom_kills()) is not None:
        seen.killed = kills_now.count - kills_before.count
    seen.seconds = time.monotonic() - began
    return seen


class _Progress:
    """When the trial last recorded an event, and the CPU time of its processes since then."""

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

    def is_over(self, alive: list[Usage], timeouts: TrialTimeouts) -> bool:
        """Whether it has made no progress for longer than the timeout."""
        grown = progress(self._folder)
        if grown != self._size:
            self._size, self._changed = grown, time.monotonic()
            self._cpu, self._queued = {one.pid: one.cpu for one in alive}, seconds_queued(alive)
        quiet = self.quiet
        if quiet < PAUSE:
            return False
        used = [one.cpu - self._cpu.get(one.pid, 0.0) for one in alive]
        if sum(used) + seconds_queued(alive) - self._queued > COMPUTES * quiet:
            return max(used) > timeouts.computing
        return quiet > timeouts.waiting * timeout_factor(alive, quiet, timeouts.waiting)


def timeout_factor(alive: list[Usage], quiet: float, waits: float) -> float:
    """Factor for a timeout: a sleep or a child may end by itself, an answer may arrive."""
    if quiet < waits:
        return 1.0
    kinds = {waiting.current_wait(one.pid).kind for one in alive}
    if len(alive) > 1:
        kinds.discard("child")  # the child itself is in `alive`
    return 4.0 if kinds & {"sleep", "child"} else 2.0 if kinds & {"socket", "disk"} else 1.0


def _sample_waits(seen: TrialObservation, alive: list[Usage], leader: int, iteration: int) -> None:
    """Sample what each worker waits for now."""
    for one in alive:
        if one.pid == leader:
            continue
        wait = waiting.current_wait(one.pid)
        # workers of unjam wait for work at a socket without an address
        is_local = wait.kind == "socket" and " to " not in wait.words
        seen.waits["local socket" if is_local else kind_of_wait(wait)] += 1
        if target := waited_for(one.pid, wait):
            seen.waited_on.setdefault(target, set()).add(one.pid)
        if iteration % 10 == 3:
            with contextlib.suppress(OSError):
                seen.native_threads = max(seen.native_threads, len(os.listdir(f"/proc/{one.pid}/task")))


def kind_of_wait(wait: waiting.Waiting) -> str:
    """The kind of a wait; a lock on a file is distinguished from one in memory."""
    return "file lock" if wait.kind == "lock" and wait.target is not None else wait.kind


def waited_for(pid: int, wait: waiting.Waiting) -> str:
    """The socket or pipe that a process waits for, as in /proc; "" if it waits for something else."""
    if wait.kind not in ("socket", "pipe") or len(wait.fds) != 1:
        return ""
    return descriptor_target(wait.fds[0], pid)


def inspect_processes(leader: int, folder: str) -> list[dict[str, Any]]:
    """Describe the processes of a trial before they are killed."""
    alive = session_processes(leader)
    armed = [one for one in alive if os.path.exists(f"{folder}/{one.pid}.stack")]
    # before our signals interrupt them: what they wait for, and whether they compute
    waits = {one.pid: waiting.current_wait(one.pid) for one in armed}
    before, began = {one.pid: one.cpu for one in alive}, time.monotonic()
    pause(0.4)
    used = {one.pid: one.cpu - before.get(one.pid, one.cpu) for one in session_processes(leader)}
    elapsed = time.monotonic() - began
    for one in armed:
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{one.pid}.report")
        _signal(one.pid, self_inspection.REPORT_SIGNAL)
    _wait_until(lambda: all(os.path.exists(f"{folder}/{one.pid}.report") for one in armed))
    found = []
    for one in armed:
        wait = waits[one.pid]
        _signal(one.pid, self_inspection.STACK_SIGNAL)
        _wait_until(lambda: read_text(f"{folder}/{one.pid}.stack") != "")  # noqa: B023 - called at once
        pause(0.05)
        own = _read_report(f"{folder}/{one.pid}.report")
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


def _wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + STACK_DUMP.seconds
    while not done() and time.monotonic() < until:
        pause(0.02)
