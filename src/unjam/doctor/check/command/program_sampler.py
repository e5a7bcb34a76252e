"""Samples a watched program from outside: what its processes wait for, and which lines they execute.

Nothing in the program changes. What a process waits for is read often. Its stack is read by py-spy, one process at a
time, and only as often as that takes a small share of a processor.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from unjam.doctor.check.command.trial_watch import kind_of_wait, waited_for
from unjam.doctor.check.processes import Usage
from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.program_facts import ObservedLine, ProcessObservations
from unjam.doctor.facts.trial import Place, place_of
from unjam.system import python_stacks, waiting

SHARE = 0.1  # of the time that reading stacks may take
MOST_LINES = 12


@dataclass
class _ProcessSamples:
    times: int = 0
    waits: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    lines: Counter[tuple[Place, str, str]] = field(default_factory=Counter)
    stacks: int = 0


class ProgramSampler:
    """Samples the processes of a program."""

    def __init__(self) -> None:
        self._seen: dict[int, _ProcessSamples] = {}
        self._turn = 0
        self._next = 0.0
        self._refused = False

    def sample(self, alive: list[Usage]) -> None:
        """Sample these processes."""
        now = {one.pid: waiting.current_wait(one.pid) for one in alive}
        for pid, wait in now.items():
            seen = self._seen.setdefault(pid, _ProcessSamples())
            seen.times += 1
            seen.waits[kind_of_wait(wait)] += 1
            if target := waited_for(pid, wait):
                seen.targets[target] += 1
        began = time.monotonic()
        if now and not self._refused and began >= self._next:
            # a process that waits for a pipe is probably idle, or is the training and waits for its workers
            pids = sorted(pid for pid, wait in now.items() if wait.kind != "pipe") or sorted(now)
            self._turn += 1
            pid = pids[self._turn % len(pids)]
            self._read_stack(pid, now[pid].kind)
            self._next = time.monotonic() + (time.monotonic() - began) / SHARE

    def _read_stack(self, pid: int, waits: str) -> None:
        try:
            threads = python_stacks.stacks(pid, values=False)
        except python_stacks.CannotReadStacks as refused:
            self._refused = "ermission" in str(refused) or "not installed" in str(refused)
            return
        main = next((one for one in threads if one.tid == pid), threads[0] if threads else None)
        if main is None:
            return
        seen = self._seen[pid]
        seen.stacks += 1
        loop = stack_activity.find_frame(main.frames, "torch/utils/data/_utils/worker.py", "_worker_loop")
        frames = main.frames[:loop] if loop >= 0 else main.frames  # a forked process also has its parent's frames
        doing = stack_activity.worker_activity(main.frames, ()) or stack_activity.main_activity(main.frames, ())
        place = place_of(frames)
        if place is not None:
            seen.lines[place, doing.stage, waits] += 1

    def facts(self) -> tuple[ProcessObservations, ...]:
        """The samples of each process so far."""
        return tuple(
            ProcessObservations(
                pid,
                seen.times,
                dict(seen.waits),
                dict(seen.targets),
                tuple(ObservedLine(*key, times) for key, times in seen.lines.most_common(MOST_LINES)),
                seen.stacks,
            )
            for pid, seen in self._seen.items()
        )
