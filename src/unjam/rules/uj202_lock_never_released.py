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

from unjam.evidence.case import Case
from unjam.rules.judging import blocked_lock, frozen, gone_words, proof, quoted, worker_words
from unjam.rules.rule import Finding, Rule

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


def broken(DataLoader: Any) -> None:
    """A lock that one way out does not release."""
    import multiprocessing

    from unjam.rules.programs import Numbers

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

    from unjam.rules.programs import Numbers

    lock = multiprocessing.Lock()

    def make(index: int) -> int:
        with lock:
            return 0 if index == 3 else index

    for _ in DataLoader(Numbers(16, make), batch_size=4, num_workers=2):
        pass
