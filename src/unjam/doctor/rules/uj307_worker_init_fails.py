"""`worker_init_fn` raises an exception.

What happened: the function that initialises a worker raised an exception, so no worker reached its
first sample.

Why: the function runs in the worker, with the worker's number as its only argument. Objects of the
program may not exist there, and its exceptions are shown only when the first batch is requested.

How to confirm: without the function the loader works.

How to fix: fix the named line.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Toggle
from unjam.doctor.queries.trials import bad_samples, raised_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ307", "worker-init-fails", symptom="differs")


def detect(case: Case) -> Finding | None:
    """Find an exception at the init stage."""
    failed = bad_samples(case.as_is, "init")
    if not failed or case.as_is is None:
        return None
    first = failed[0]
    plain = case.as_is.plan.changed(plain=True)
    return Finding(
        RULE,
        f"worker_init_fn ({case.loader.worker_init}) raises {first.type_name} in every worker",
        f"{case.loader.worker_init} at {first.place}" if first.place else case.loader.worker_init,
        raised_words(first),
        Toggle(case.as_is.plan, (plain,)),
        f"fix {first.place or case.loader.worker_init}; the function is called in the worker with the worker's number",
        first.place,
    )
