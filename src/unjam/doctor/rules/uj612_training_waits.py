"""Data loading is the bottleneck of the training.

What happened: between the first batch and the last, the training waited for the loader for a large part of the time.

Why: loading samples takes longer than training on them: every sample is slow, or there are too few workers. The finding names the
lines that take the time.

How to confirm: `unjam check --profile`, or a profile of `for batch in loader: pass`.

How to fix: make the named line cheaper: move work that it repeats for each sample to __init__ or to the first use, read only what
is used, use a format with random access. If samples wait for a disk or a network more than they compute, add workers.

Limits: if a training step costs nothing, the training waits for any loader; a wait of a few seconds is only a note.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import TrainingWaits
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ612", "training-waits", Severity.WARNING, symptom="slow", fallback=True)


def words(one: TrainingWaits) -> Words:
    """Say how long the training waited, and for which line."""
    share = one.waited / one.total if one.total else 0.0
    where = f", mostly for {one.line} ({one.hot:.0%} of the loading)" if one.line is not None and one.hot >= 0.2 else ""
    return Words(
        f"the training waits for {one.loader} {share:.0%} of the time{where}",
        (f"make {one.line} cheaper: do once what it repeats for every sample" if where else "make samples cheaper")
        + ("; or add workers (`unjam tune` measures how many)" if not one.workers else ""),
        severity=Severity.NOTE if one.minor else None,
    )
