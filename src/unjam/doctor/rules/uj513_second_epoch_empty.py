"""The second epoch is empty.

What happened: the first epoch delivered samples and the second none: the iterable was exhausted.

Why: an iterator (a generator, an open file, a `map` or `zip` object, a csv reader) was created once
in `__init__`; it can be iterated only once.

How to confirm: iterate the dataset twice.

How to fix: create the iterator in `__iter__`.

Limits: with forked workers each epoch starts from the program's own copy, which is still unused.
The problem then appears only with `num_workers=0` or `persistent_workers=True`.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ513", "second-epoch-empty", replaces=("UJ526", "UJ512"))


def detect(case: Case) -> Finding | None:
    """Compare two epochs without workers."""
    alone, loader = case.alone, case.loader
    if not loader.iterable or alone is None or len(alone.epochs) < 2 or alone.bad:
        return None
    first, second = len(alone.of_epoch(0)), len(alone.of_epoch(1))
    if not first or second or case.reading.writes:
        return None  # not empty, or the program sets up the dataset before each epoch
    hides = loader.num_workers > 0 and not loader.persistent_workers
    return Finding(
        RULE,
        f"the second epoch is empty: {loader.dataset} can be iterated only once",
        f"{loader.dataset}.__iter__",
        (
            f"first epoch: {first:,} samples; second: none",
            "forked workers start from a fresh copy each epoch: the problem appears with num_workers=0 or persistent workers"
            if hides
            else "",
        ),
        OBSERVED,
        f"create the iterator in {loader.dataset}.__iter__ instead of __init__",
        loader.dataset_place,
        severity=Severity.WARNING if hides else None,
    )
