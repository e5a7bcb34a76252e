"""A sample waits for a queue, an event or a barrier that no process serves.

What happened: the dataset reads from an empty queue that nothing fills, or writes to a full queue
that nothing reads; or it waits for an event that nothing sets, or at a barrier that no other
process reaches.

Why: `get()` and `put()` block forever unless they have a timeout. With several workers, more items
are put than the reader expected, or the items were put only once although every worker needs them.

How to confirm: the queue is empty (or full) while every process waits.

How to fix: use `get(timeout=…)` / `put(timeout=…)`; return results through the sample instead of a
queue; put one sentinel for each worker.

Limits: the doctor cannot know which process should have served the queue.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.waits import PoolWaitsForItself, ProducerNeverEnds
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, stuck_processes, waits_for
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import every

RULE = Rule("UJ206", "queue-not-served", symptom="frozen")


def words(one: PoolWaitsForItself | ProducerNeverEnds) -> Words:
    """Say that tasks of a pool wait for tasks of the same pool, or that a producer is blocked on a full queue."""
    if isinstance(one, ProducerNeverEnds):
        return Words(
            f"thread {one.thread!r} is blocked on a full queue, while the program waits for the thread to end",
            f"before join(), tell the thread to stop and empty the queue; or give put() at {one.puts} a timeout and check a stop flag",
        )
    return Words(
        f"{every(one.threads, 'thread')} of a pool {'waits' if one.threads == 1 else 'wait'} for tasks of the same pool, at {one.place}",
        "use a second pool for the inner tasks, or run them in the task that needs them; more threads only move the limit",
    )


def detect(case: Case) -> Finding | None:
    """Find a stuck line that waits for a queue, a barrier, an event or a future."""
    found = []
    for base, stuck in stuck_processes(case):
        sync = waits_for(stuck, "queue", "barrier", "event", "future")
        if sync is not None and not stuck.native:
            found.append((base, stuck, sync))
    if not found:
        return None
    _, stuck, sync = found[0]
    threads = case.process_facts.threads and not sync.state.between_processes
    if threads and not any(trial.plan.in_place and trial.outcome == "hung" for trial in case.trials):
        return None  # UJ204: a thread of the program may serve it
    kind = sync.state.kind
    if kind != "queue" and case.process_facts.threads and not any(t.plan.in_place for t in case.trials):
        return None
    full = sync.state.full and not sync.state.empty
    state = ("full" if full else "empty") if kind == "queue" else "not set" if kind == "event" else "not complete"
    served = {"full": "reads", "empty": "fills", "not set": "sets"}.get(state, "completes")
    part = case.part(sync.path)
    both = len({id(base) for base, *_ in found}) > 1 or not case.loader.num_workers
    return Finding(
        RULE,
        f"{describe_worker(stuck)} waits for {sync.path}, which is {state} and which no process {served}",
        sync.path,
        (
            f"waits at {quoted(stuck.place)}",
            f"{sync.path} ({sync.type_name}) is {state}",
            *line_evidence("created at", part.place if part else None),
            "the same with workers and without" if both and case.loader.num_workers else "",
        ),
        AGREES,
        f"give the call at {stuck.place} a timeout, and return results through the sample instead of {sync.path}",
        stuck.place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a wait for a queue, an event or a similar object that nothing serves."""
    for blocked in scenes.blocked_processes(scene):
        sync = blocked.sync
        kind = sync.state.kind if sync else ""
        drains = blocked.process.activity.stage == "end" and blocked.process.role == "worker"
        if kind not in ("queue", "barrier", "event", "condition", "future", "executor", "loop") and not drains:
            continue
        if scenes.loop_waits_outside(blocked):
            continue
        between = bool(sync and sync.state.between_processes)
        threads = scenes.own_threads(scene.main_of(blocked.process))
        lost = blocked.process.forked and not blocked.others and kind not in ("loop", "barrier") and bool(threads)
        if not between and lost and not drains:
            continue  # UJ204: a thread is missing after the fork
        name = ("its coroutine" if kind == "loop" else scenes.called_on(blocked)) or (
            f"a {sync.type_name}" if sync and sync.type_name else "a queue"
        )
        full = drains or (sync is not None and sync.state.call == "put")
        state = "no process sets or completes"
        if kind == "queue" or drains:
            state = "is full and no process reads" if full else "is empty and no process fills"
        return Finding(
            RULE,
            f"{blocked.who} waits for {name}, which {state}",
            name,
            blocked.evidence(
                "it has finished its work and cannot exit until the items it put into a queue are read"
                if drains
                else "",
                *scenes.peer_words(blocked),
            ),
            AGREES if blocked.seconds >= scenes.NO_ACCIDENT or between or drains else SUGGESTED,
            f"give the call at {blocked.thread.place} a timeout, and return results through the sample instead of {name}"
            if not drains
            else "take everything out of the queue before join(), or return results through the sample",
            blocked.thread.place or scene.main_of(blocked.process).thread.place,
        )
    return None
