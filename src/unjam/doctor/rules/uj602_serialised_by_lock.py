"""A lock serialises the workers.

What happened: the workers spend their time waiting for one lock, so several workers are no faster
than one.

Why: a lock around the reading of a sample lets only one worker read at a time. Files opened by path
in each sample need no lock: every `open` has its own position, and reading changes nothing. A lock
there protects nothing, and freezes every worker if its holder dies.

How to confirm: time the same samples without waiting for the lock.

How to fix: remove the lock where workers only read. Where they write, lock only the writing; where
a handle is shared, open one in each worker instead.

Limits: the cost of the lock is measured; the doctor does not know whether it protects anything.
"""

from __future__ import annotations

from dataclasses import replace

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.trial import FILE_LOCKS
from unjam.doctor.mechanisms.time_spent import WorkersTakeTurns
from unjam.doctor.proof import Severity
from unjam.doctor.queries.trials import basis_faster_with
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ602", "serialised-by-lock", Severity.WARNING, symptom="slow")
FASTER = 1.35
WAITS = 0.15


def words(one: WorkersTakeTurns) -> Words:
    """Say which lock it is, and what it should protect."""
    return Words(
        f"{one.lock} serialises the {one.workers} workers of {one.loader}: they wait for it {one.share:.0%} of the time",
        f"hold {one.lock} only for what one worker must do at a time; reading, decoding and server requests need no lock",
    )


def detect(case: Case) -> Finding | None:
    """Find workers that wait for a lock and are faster without it."""
    as_is, loader = case.as_is, case.loader
    if as_is is None or not as_is.fine or loader.num_workers < 2 or as_is.lock_waits < WAITS:
        return None
    waits = as_is.waits
    on_files = waits.get("file lock", 0)
    if sum(waits.values()) < 20:
        return None
    locks: list[Part | None] = list(case.shared_locks)
    if on_files > 0.5 * (on_files + waits.get("lock", 0)):
        locks = []
    elif not locks:
        return None
    timed = as_is.plan.changed(measured=True, epochs=1, seconds=4.0)
    plans = {timed.changed(unlock=(lock.path if lock else FILE_LOCKS,)): lock for lock in locks or [None]}
    best = max(plans, key=lambda plan: case.rates(timed, plan)[1])
    lock, (base, without) = plans[best], case.rates(timed, best)
    name = lock.path if lock else "a file lock (fcntl.flock)"
    return Finding(
        RULE,
        f"{name} serialises {loader.num_workers} workers: {without / (base or 1):.1f} times faster without it",
        name,
        (
            f"unchanged: {base:,.0f} samples/s; without waiting for {name}: {without:,.0f} samples/s",
            f"when sampled, the workers were waiting for a lock {as_is.lock_waits:.0%} of the time",
            *line_evidence("created at", lock.place if lock else None),
            "a file that each sample opens by its path needs no lock",
        ),
        replace(basis_faster_with(timed, best, FASTER), changed=(best, *(one for one in plans if one != best))),
        f"remove {name} where the workers only read; keep it around writing",
        (lock.place if lock else None) or loader.dataset_place,
    )
