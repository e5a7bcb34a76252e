"""A lock was taken and never given back.

What happened: a worker (or the program) took a lock and went on, or ended, without releasing it. Everybody who needs it waits for ever.

Why: a `multiprocessing.Lock` is a semaphore in shared memory: nobody releases it when its holder dies, raises, returns early or is
killed. A `threading.Lock` taken twice by one thread waits for itself.

How to confirm: the same trial with the lock given back after every sample goes through.

How to fix: take locks with `with`, so that they are released whatever happens; do not take a lock a second time inside; leave locks out
where they protect nothing: files opened by path need none. For a lock that must survive its holder use `fcntl.flock`, which the kernel
releases.

Limits: the line that took the lock first is found by reading, not by running.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules import watching
from unjam.doctor.rules.judging import LIKELY, POSSIBLE, blocked_lock, frozen, gone_words, proof, quoted, worker_words
from unjam.doctor.rules.rule import Confidence, Finding, Rule

RULE = Rule("UJ202", "lock-never-released", symptom="frozen")


def detect(case: Case) -> Finding | None:
    """A stuck line that waits for a lock which was free when the program was captured, or which only a process could hold."""
    for base, stuck in frozen(case):
        lock = blocked_lock(case, stuck)
        part = case.part(lock.path) if lock else None
        if lock is None or part is None:
            continue
        held_by_thread = any(lock.path in thread.holds for thread in case.world.threads)
        before = bool(part.facts.get("locked"))
        if before and (held_by_thread or not part.facts.get("between_processes")):
            continue
        plan = base.plan.changed(release=(lock.path,))
        trial = case.tried(plan)
        when = "before the workers started" if before else "while loading"
        return Finding(
            RULE,
            f"{lock.path} was taken {when} and never released; {worker_words(stuck)} waits for it for ever",
            lock.path,
            (
                f"waits at {quoted(stuck.place)}",
                f"it was {'held' if before else 'free'} when the workers started"
                + ("; no thread of the program uses it" if before else ""),
                *((f"the lock is made at {quoted(part.place)}",) if part.place else ()),
                *gone_words(trial),
            ),
            proof(case, base, trial),
            f"take {lock.path} with `with` so that every way out releases it, and never twice; if it only guards reading "
            "files by path, remove it",
            stuck.place,
            wants=(plan,),
        )
    return None


def witness(scene: Scene) -> Finding | None:
    """A wait for a lock that the waiting thread itself is inside of, or that nobody alive is inside of."""
    for jam in watching.jams(scene):
        between = watching.is_between_processes(jam)
        if jam.process.doing.stage == "end":
            continue
        if not (watching.waits_for_own_lock(jam) or (between and watching.waits_for_lock(jam))):
            continue
        if between and any(watching.gets_on(scene, holder.pid) for holder in jam.thread.holders if not holder.itself):
            continue  # whoever has it will give it back
        found = _taken_twice(jam) or _each_other(scene, jam) or _nobody(scene, jam, between=between)
        if found is None:
            continue
        title, evidence, confidence = found
        name = watching.lock_name(jam)
        return Finding(
            RULE,
            f"{jam.who} {title}",
            name,
            (
                f"waits at {jam.where}, for {watching.duration(jam.seconds)}",
                *evidence,
                *watching.consequence(scene, jam),
            ),
            confidence,
            f"take {name} with `with` so that every way out releases it, and never twice; if it only guards reading files by "
            "path, remove it",
            jam.thread.place,
        )
    return None


def _taken_twice(jam: watching.Jam) -> tuple[str, list[str], Confidence] | None:
    own = next((holder for holder in jam.thread.holders if holder.itself), None)
    if own is None:
        return None
    return (
        f"waits for {own.expression}, which it holds itself already",
        [f"taken first at {quoted(own.place)}, by the same thread"],
        LIKELY if own.same else POSSIBLE,
    )


def _each_other(scene: Scene, jam: watching.Jam) -> tuple[str, list[str], Confidence] | None:
    for holder in jam.thread.holders:
        other = watching.thread_of(scene, holder)
        if other is None or holder.itself:
            continue
        back = next((h for h in other.holders if (h.pid, h.tid) == (jam.process.pid, jam.thread.tid)), None)
        if back is not None:
            them = scene.find(holder.pid)
            who = (
                f"thread {holder.thread!r}"
                if holder.pid == jam.process.pid
                else them.name
                if them
                else f"pid {holder.pid}"
            )
            return (
                f"and {who} wait for each other: each holds the lock that the other wants",
                [
                    f"{who} holds {holder.expression} since {quoted(holder.place)} and waits for {back.expression}",
                    f"this one holds {back.expression} since {quoted(back.place)}",
                ],
                LIKELY,
            )
    return None


def _nobody(scene: Scene, jam: watching.Jam, *, between: bool) -> tuple[str, list[str], Confidence] | None:
    if jam.thread.holders:
        return None  # somebody has it and is stuck in something else: that is the cause
    name = watching.lock_name(jam)
    if between:
        dead = [one for one in scene.processes if one.ended]
        gone = f"; dead: {', '.join(one.name for one in dead)}" if dead else ""
        return (
            f"waits for {name}, which no living process is inside of: it was taken and never released",
            [f"it lies in memory that the processes share, and nobody's calls are inside it{gone}"],
            LIKELY,
        )
    early = watching.in_first_sample(jam) or (
        watching.in_first_batch(jam) and watching.own_threads(scene.main_of(jam.process))
    )
    if jam.others or (jam.process.forked and early):
        return None
    return (
        f"waits for {name}, which was taken in this process and never released",
        ["no other thread of this process is inside it"],
        LIKELY,
    )


def broken(DataLoader: Any) -> None:
    """A lock that one way out does not release."""
    import multiprocessing

    from unjam.doctor.rules.programs import Numbers

    lock = multiprocessing.Lock()

    def make(index: int) -> int:
        lock.acquire()
        if index == 3:
            return 0
        lock.release()
        return index

    for _ in DataLoader(Numbers(16, make), batch_size=4, num_workers=2):
        pass


def fixed(DataLoader: Any) -> None:
    """Taken with `with`."""
    import multiprocessing

    from unjam.doctor.rules.programs import Numbers

    lock = multiprocessing.Lock()

    def make(index: int) -> int:
        with lock:
            return 0 if index == 3 else index

    for _ in DataLoader(Numbers(16, make), batch_size=4, num_workers=2):
        pass
