"""A lock was acquired and never released.

What happened: a worker (or the program) acquired a lock and continued, or ended, without releasing
it. Every process that needs the lock waits forever.

Why: a `multiprocessing.Lock` is a semaphore in shared memory: it stays locked when its holder dies,
raises, returns early or is killed. A thread that acquires a `threading.Lock` twice waits for
itself.

How to confirm: the same trial succeeds when the lock is released after every sample.

How to fix: acquire locks with `with`, so that they are released on every path; do not acquire a
lock again while you hold it; remove locks that protect nothing: files opened by path need none. If
the holder of a lock may die, use `fcntl.flock`, which the kernel releases.

Limits: the line that acquired the lock first is found by reading the source, not by running it.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.not_released import LockFileNotRemoved, NeverReleased
from unjam.doctor.proof import AGREES, SUGGESTED, Basis, Toggle
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import blocked_lock, describe_worker, stuck_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ202", "lock-never-released", symptom="frozen")
_RESOURCES = {"transaction": "a transaction of {}", "file": "the lock file {}"}


def words(one: NeverReleased | LockFileNotRemoved) -> Words:
    """Say what was not released, and what waits for it."""
    if isinstance(one, LockFileNotRemoved):
        return Words(
            f"{one.waiter} waits for the lock file {one.path} to disappear, but the process that created it has ended",
            "use a lock that the kernel releases when its process ends (fcntl.flock on an open file), or remove a leftover lock file at "
            "startup"
            + ("; in a forked worker use multiprocessing.util.Finalize: atexit does not run" if one.at_exit else ""),
        )
    resource = _RESOURCES.get(one.kind, "{}").format(one.culprit)
    consequence = f"another worker fails: {one.failed}" if one.failed else "the loader waits for it forever"
    remedy = (
        "commit (or roll back) before the sample is returned"
        if one.kind == "transaction"
        else "release it on every path: use `with`, or release() in a `finally`"
    )
    return Words(
        f"sample {one.index} acquired {resource} and did not release it; {consequence}",
        remedy + (f"; it is acquired at {one.place}" if one.place else ""),
    )


def detect(case: Case) -> Finding | None:
    """Find a stuck line that waits for a lock that was acquired and not released.

    The lock was free at the time of capture; or it was held, is shared between processes, and no
    thread of the program uses it.
    """
    for base, stuck in stuck_processes(case):
        lock = blocked_lock(case, stuck)
        part = case.part(lock.path) if lock else None
        if lock is None or part is None:
            continue
        held_by_thread = any(lock.path in thread.holds for thread in case.process_facts.threads)
        before = bool(part.state.locked)
        if before and (held_by_thread or not part.state.between_processes):
            continue
        plan = base.plan.changed(release=(lock.path,))
        when = "before the workers started" if before else "while loading"
        return Finding(
            RULE,
            f"{lock.path} was acquired {when} and never released; {describe_worker(stuck)} waits for it forever",
            lock.path,
            (
                f"waits at {quoted(stuck.place)}",
                f"it was {'held' if before else 'free'} when the workers started"
                + ("; no thread of the program uses it" if before else ""),
                *line_evidence("the lock is created at", part.place),
            ),
            Toggle(base.plan, (plan,)),
            _help(lock.path),
            stuck.place,
        )
    return None


def _help(lock: str) -> str:
    return (
        f"acquire {lock} with `with`, so that every path releases it, and never twice; if it only guards reading files by "
        "path, remove it"
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a wait for a lock that the waiter itself holds, that is part of a deadlock, or that has no holder."""
    for blocked in scenes.blocked_processes(scene):
        between = scenes.is_between_processes(blocked)
        if blocked.process.activity.stage == "end":
            continue
        if not (scenes.waits_for_own_lock(blocked) or (between and scenes.waits_for_lock(blocked))):
            continue
        if between and any(
            scenes.is_progressing(scene, holder.pid) for holder in blocked.thread.holders if not holder.itself
        ):
            continue  # the holder makes progress and will release it
        found = _taken_twice(blocked) or _mutual_wait(scene, blocked) or _no_holder(scene, blocked, between=between)
        if found is None:
            continue
        title, evidence, confidence = found
        name = scenes.lock_name(blocked)
        return Finding(
            RULE,
            f"{blocked.who} {title}",
            name,
            blocked.evidence(*evidence),
            confidence,
            _help(name),
            blocked.thread.place,
        )
    return None


def _taken_twice(blocked: scenes.BlockedProcess) -> tuple[str, list[str], Basis] | None:
    own = next((holder for holder in blocked.thread.holders if holder.itself), None)
    if own is None:
        return None
    return (
        f"waits for {own.expression}, which it already holds",
        [f"first acquired at {quoted(own.place)}, by the same thread"],
        AGREES if own.same else SUGGESTED,
    )


def _mutual_wait(scene: Scene, blocked: scenes.BlockedProcess) -> tuple[str, list[str], Basis] | None:
    for holder in blocked.thread.holders:
        other = scenes.thread_of(scene, holder)
        if other is None or holder.itself:
            continue
        back = next((h for h in other.holders if (h.pid, h.tid) == (blocked.process.pid, blocked.thread.tid)), None)
        if back is not None:
            holding = scene.find(holder.pid)
            who = (
                f"thread {holder.thread!r}"
                if holder.pid == blocked.process.pid
                else holding.name
                if holding
                else f"pid {holder.pid}"
            )
            return (
                f"and {who} wait for each other: each holds the lock that the other needs",
                [
                    f"{who} acquired {holder.expression} at {quoted(holder.place)} and waits for {back.expression}",
                    f"{blocked.who} acquired {back.expression} at {quoted(back.place)}",
                ],
                AGREES,
            )
    return None


def _no_holder(scene: Scene, blocked: scenes.BlockedProcess, *, between: bool) -> tuple[str, list[str], Basis] | None:
    if blocked.thread.holders:
        return None  # the holder is stuck elsewhere, which is the cause
    name = scenes.lock_name(blocked)
    if between:
        dead = [one for one in scene.processes if one.ended]
        gone = f"; dead: {', '.join(one.name for one in dead)}" if dead else ""
        return (
            f"waits for {name}, which no living process holds: it was acquired and never released",
            [f"the lock is in shared memory, and no process is inside a block that holds it{gone}"],
            AGREES,
        )
    early = scenes.in_first_sample(blocked) or (
        scenes.in_first_batch(blocked) and scenes.own_threads(scene.main_of(blocked.process))
    )
    if blocked.others or (blocked.process.forked and early):
        return None
    return (
        f"waits for {name}, which was acquired in this process and never released",
        ["no other thread of this process is inside a block that holds it"],
        AGREES,
    )
