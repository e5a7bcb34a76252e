"""One rank of a distributed job blocks the others.

What happened: some ranks wait in a collective operation (all_reduce, barrier, the end of backward),
and one rank has not reached it: it is stuck or slow in its data loading, or in its training step.

Why: a collective operation waits for every rank, and the waiting ranks do not report which one is
missing.

How to confirm: the evidence is the stacks of all ranks, taken at the same time.

How to fix: look at what the named rank does; if its loader is stuck, another finding names the
cause. Uneven numbers of batches have the same effect: one rank has left its loop while the others
begin another step (`DistributedSampler`, `Join`, `drop_last=True`).

Limits: only ranks on this machine are examined.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.scene import Process, Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.ranks import RankSkippedSteps
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.queries import scenes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration

RULE = Rule("UJ212", "rank-blocks-the-others", symptom="ranks")


def words(one: RankSkippedSteps) -> Words:
    """Say which rank skipped steps."""
    return Words(
        f"{one.rank} took {count(one.skipped, 'batch', 'batches')} of {one.loader} without backward(), which the other ranks waited for",
        "call backward() for every batch on every rank: make the loss of an empty batch 0 * model(...).sum(), or remove such samples "
        "before they are distributed to the ranks",
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find ranks that wait in a collective operation, and a rank that is missing there."""
    mains = [one for one in scene.mains if one.threads]
    waiting = [one for one in mains if _in_collective(scene, one)]
    missing = [one for one in mains if one not in waiting]
    if len(waiting) > 1 and not missing:
        return _different_operations(scene, waiting)
    if not waiting or not missing:
        return None
    first, seconds = waiting[0], min(scenes.waited(one.thread, scene) for one in waiting)
    if seconds < 1.0 and not all(one.thread.steady for one in waiting):
        return None  # a short wait in a healthy job
    holder = next((one for one in missing if scenes.is_blocked(scene, one, one.thread)), missing[0])
    makes_progress = holder.thread.computes or (holder.activity.stage != "waits" and not holder.thread.steady)
    if makes_progress and seconds < scenes.NO_ACCIDENT:
        return None  # the missing rank may only be slightly slower
    verb = "wait" if waiting[1:] else "waits"
    operation = stack_activity.collective(first.thread.frames) or "a collective operation"
    return Finding(
        RULE,
        f"{holder.name} is blocking the other ranks: {', '.join(one.name for one in waiting[:4])} {verb} in {operation}",
        holder.name,
        (
            f"{holder.name} {_activity(holder)} at {quoted(holder.thread.place)}",
            *(f"{one.name} waits at {quoted(one.thread.place)}" for one in waiting[:4]),
            f"also missing there: {', '.join(one.name for one in missing if one is not holder)}" if missing[1:] else "",
        ),
        AGREES if not makes_progress else SUGGESTED,
        f"look at what {holder.name} does; the other ranks are only waiting for it",
        holder.thread.place,
        severity=Severity.ERROR,
    )


def _different_operations(scene: Scene, waiting: list[Process]) -> Finding | None:
    """Find ranks that all wait, but in different operations."""
    if not all(scenes.is_blocked(scene, one, one.thread) for one in waiting):
        return None
    places = {(stack_activity.collective(one.thread.frames), str(one.thread.place)) for one in waiting}
    first = waiting[0]
    if len(places) < 2:
        return None
    return Finding(
        RULE,
        "the ranks wait for each other in different operations: "
        + ", ".join(
            f"{one.name} in {stack_activity.collective(one.thread.frames) or 'another'}" for one in waiting[:4]
        ),
        ", ".join(one.name for one in waiting[:4]),
        tuple(
            f"{one.name} waits at {quoted(one.thread.place)}, for {duration(scenes.waited(one.thread, scene))}"
            for one in waiting[:4]
        ),
        AGREES,
        "let every rank run the same number of batches and the same collective operations in the same order (drop_last=True, "
        "DistributedSampler, no collective operation under an `if rank == 0`)",
        first.thread.place,
    )


def _in_collective(scene: Scene, main: Process) -> bool:
    if stack_activity.collective(main.thread.frames):
        return True
    waits = main.thread.waiting.kind in ("lock", "socket") and main.thread.native and main.activity.stage == "elsewhere"
    return waits and bool(main.connected) and scenes.is_blocked(scene, main, main.thread)


def _activity(main: Process) -> str:
    stages = {
        "waits": "waits for its own loader",
        "sample": f"is in sample {main.activity.index}",
        "collate": "is in its collate function",
        "starting": "starts its workers",
        "stopping": "stops its workers",
    }
    return stages.get(main.activity.stage, "computes" if main.thread.computes else main.thread.waiting.phrase)
