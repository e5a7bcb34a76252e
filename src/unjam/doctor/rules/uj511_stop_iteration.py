"""A sample raises `StopIteration`, and the epoch ends there without an error.

What happened: `__getitem__` raised StopIteration (a bare `next()` on an exhausted iterator). torch
passes it on, and the for-loop treats it as the end of the epoch: the remaining samples are silently
missing.

Why: Python ends a for-loop with StopIteration.

How to confirm: `dataset[index]` raises StopIteration.

How to fix: use `next(iterator, None)` with a check, or catch StopIteration and raise another
exception. unjam's own loader raises an error.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.trials import bad_samples, names
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ511", "stop-iteration", symptom="raised", replaces=("UJ512", "UJ526"))


def detect(case: Case) -> Finding | None:
    """Find a StopIteration that a sample of a map-style dataset raises."""
    ended = [b for t in (case.alone, case.as_is) for b in bad_samples(t, "sample") if b.type_name == "StopIteration"]
    if not ended or case.loader.iterable:
        return None
    first = ended[0]
    return Finding(
        RULE,
        f"sample {first.index} raises StopIteration: the epoch ends there without an error",
        f"sample {names(b.index for b in ended)}" + (f" at {first.place}" if first.place else ""),
        (
            *line_evidence("raised at", first.place),
            f"samples that raise it, of those loaded: {len({b.index for b in ended})}",
        ),
        OBSERVED,
        f"at {first.place or case.loader.dataset} give next() a default, or convert StopIteration into another exception",
        first.place,
    )
