"""A process of the loader is suspended.

What happened: a worker or the main process was stopped, either by SIGSTOP (a debugger, Ctrl-Z) or
by a container or batch system that froze its control group. It does nothing until it is resumed,
and every process that depends on it waits too.

Why: a check that asks only whether a process exists counts a suspended process as alive.

How to confirm: its state in /proc is T (or it sits in the kernel's refrigerator).

How to fix: run `kill -CONT PID`; for a frozen control group use `docker unpause`, or the batch
system's resume.

Limits: the system does not record which process stopped it.
"""

from __future__ import annotations

from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries import scenes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ210", "suspended", symptom="frozen")


def detect_live(scene: Scene) -> Finding | None:
    """Find a main process or worker that is suspended."""
    held = [
        one
        for one in scene.processes
        if one.role in ("main", "worker") and one.threads and one.thread.waiting.kind == "suspended"
    ]
    if not held:
        return None
    first = held[0]
    blocked = scenes.BlockedProcess(scene, first, first.thread)
    frozen = first.thread.waiting.state == "D"
    place = first.thread.place
    return Finding(
        RULE,
        f"{blocked.who} is suspended" + (": its control group is frozen" if frozen else " (SIGSTOP)"),
        f"pid {first.pid}",
        (
            f"state {first.state}, for {duration(blocked.seconds)}" + (f", at {quoted(place)}" if place else ""),
            f"also suspended: {', '.join(one.name for one in held[1:4])}" if held[1:] else "",
            *scenes.consequence(scene, blocked),
        ),
        OBSERVED,
        "unpause the container or resume the job" if frozen else f"resume it: kill -CONT {first.pid}",
        place,
    )
