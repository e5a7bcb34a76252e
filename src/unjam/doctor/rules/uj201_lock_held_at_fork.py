"""The workers wait for a lock that was held when they were forked.

What happened: at the moment of the fork another thread of the program (or the program itself) held
a lock. The workers inherited the lock already locked. The thread that would release it does not
exist in the workers, so they wait forever.

Why: fork copies memory, not threads.

How to confirm: the same trial succeeds when this one lock is released before the workers start.

How to fix: create the lock in the worker that uses it; do not share a lock between the dataset and
a thread of the program; create the loader's iterator while no thread holds the lock; or use
`multiprocessing_context="forkserver"`, whose workers inherit no lock of the program. unjam's own
loader does not fork the program.

Limits: a lock inside native code cannot be named (see UJ203).
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import place_of
from unjam.doctor.proof import AGREES, Toggle
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import blocked_lock, describe_worker, stuck_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ201", "lock-held-at-fork", symptom="frozen")


def detect(case: Case) -> Finding | None:
    """Find a stuck line that waits for a lock that was already held at the time of capture."""
    for base, stuck in stuck_processes(case):
        lock = blocked_lock(case, stuck)
        part = case.part(lock.path) if lock else None
        if lock is None:
            continue
        holder = next((thread for thread in case.process_facts.threads if lock.path in thread.holds), None)
        if part is not None and not part.state.locked:
            continue
        if part is None and not case.process_facts.threads:
            continue
        if part is not None and part.state.between_processes and holder is None:
            continue
        who = f"thread {holder.name!r}" if holder else "the program" if part else "a thread of the program"
        place = place_of(holder.frames) if holder else None
        return Finding(
            RULE,
            f"the workers wait for {lock.path}, which {who} held when they were forked",
            lock.path,
            (
                f"{describe_worker(stuck)} waits for a lock at {quoted(stuck.place)}",
                f"{who} holds it" + (f", at {quoted(place)}" if place else "") if holder else "",
                *line_evidence("the lock is created at", part.place if part else None),
            ),
            Toggle(base.plan, (base.plan.changed(release=(lock.path,)),)) if part else AGREES,
            _help(lock.path, who),
            stuck.place,
        )
    return None


def _help(lock: str, who: str) -> str:
    return (
        f"create {lock} in the worker (on first use, or in worker_init_fn) instead of sharing it with {who}; or pass "
        "multiprocessing_context='forkserver'"
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a forked worker that waits for a Python lock that no thread in it can release."""
    for blocked in scenes.blocked_processes(scene):
        if not scenes.waits_for_own_lock(blocked) or not blocked.process.forked:
            continue
        if any(holder.pid == blocked.process.pid for holder in blocked.thread.holders):
            continue
        main = scene.main_of(blocked.process)
        holder = next((h for h in blocked.thread.holders if h.pid == main.pid and h.same), None)
        early = scenes.in_first_sample(blocked) or (scenes.in_first_batch(blocked) and scenes.own_threads(main))
        if holder is None and (blocked.others or not early):
            continue
        name = holder.expression if holder else scenes.lock_name(blocked)
        threads = ", ".join(repr(thread.name) for thread in scenes.own_threads(main)[:3])
        who = f"thread {holder.thread!r} of the main process" if holder else "a thread of the main process"
        return Finding(
            RULE,
            f"{blocked.who} waits for {name}, which {who} held when the worker was forked",
            name,
            blocked.evidence(
                f"{who} holds it now, acquired at {quoted(holder.place)}"
                if holder
                else "this is the worker's first sample: it inherited the lock already locked"
                + (f"; threads of the main process now: {threads}" if threads else ""),
                "no thread of the worker holds it, and none of the main process's threads exists in the worker",
            ),
            AGREES,
            _help(name, who),
            blocked.thread.place,
        )
    return None
