"""A sample fails only in workers.

What happened: loading raises an exception with workers, and the same samples load without workers.
No other rule names the cause.

Why: the sample depends on something that is missing or different in a worker: the main thread's
signal handlers, an accelerator, a context variable, a handle, an environment variable, or
`get_worker_info()`, which is None outside workers.

How to confirm: it succeeds with `num_workers=0`.

How to fix: look at the named line, and find what it uses that exists only in the program's own
process.

Limits: this is a symptom; the cause may be a race.
"""

from __future__ import annotations

from dataclasses import replace

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import AGREES, Toggle
from unjam.doctor.queries.trials import exception_naming_its_process, first_line, only_in_workers, raised_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule(
    "UJ308", "fails-only-in-workers", symptom="differs", fallback=True, yields_to=("died", "raised", "start", "none")
)
# the same rule, for an exception that itself shows that the process matters
KNOWN = replace(RULE, fallback=False, replaces=("UJ310",))


def detect(case: Case) -> Finding | None:
    """Find an exception that occurs only in workers."""
    in_place = next((t for t in case.trials if t.plan.in_place and t.fine and not t.bad and t.samples), None)
    alone = in_place or case.alone
    named = exception_naming_its_process(case)
    if named is not None:
        return Finding(
            KNOWN,
            f"sample {named.index} raises {named.type_name}: {first_line(named)}; the message contains the worker's own pid",
            f"sample {named.index} at {named.place}" if named.place else f"sample {named.index}",
            raised_words(named),
            AGREES,
            f"{named.place or case.loader.dataset} finds only what the program's own process created: create it in each worker",
            named.place,
        )
    bad = only_in_workers(case)
    if in_place is not None and bad is None and case.as_is is not None and not case.as_is.fine:
        bad = next(iter(case.as_is.bad), None)
    if bad is None or alone is None or not alone.fine or alone.bad:
        return None
    where = f"sample {bad.index}" if bad.index else f"the {bad.stage} stage"
    return Finding(
        RULE,
        f"{where} raises {bad.type_name} in a worker and loads without workers",
        f"{where} at {bad.place}" if bad.place else where,
        (
            *raised_words(bad),
            f"without workers: {len(alone.samples)} samples, none failed",
            "also fails in a fork without workers: the process matters, not the workers"
            if in_place and case.alone and case.alone.bad
            else "",
        ),
        Toggle(case.as_is.plan, (alone.plan,)) if case.as_is is not None else AGREES,
        f"look at what {bad.place or case.loader.dataset} uses that only the program's own process has",
        bad.place,
    )
