"""The sampler takes a large part of the time.

What happened: the process that trains spent seconds in the sampler, while the workers had nothing to do.

Why: a sampler runs in the process that iterates the loader, never in a worker. One that loads samples to learn their lengths, sorts
everything anew for every batch, or scans all labels again and again holds up the training, however many workers there are.

How to confirm: time `for indices in loader.batch_sampler: pass`.

How to fix: compute what the sampler needs (lengths, classes, weights) once, in its __init__, and keep it in arrays or in a file.

Limits: a sampler that waits for something else, such as another rank, is counted as well.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import SamplerTakesTime
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule
from unjam.units import duration

RULE = Rule("UJ614", "sampler-takes-time", Severity.WARNING, symptom="slow")
NAMES = (SamplerTakesTime,)


def words(one: SamplerTakesTime) -> Words:
    """Say how long, and what to do once."""
    each = f" ({duration(one.seconds / one.epochs)} per epoch)" if one.epochs > 1 else ""
    return Words(
        f"{one.sampler} of {one.loader} took {duration(one.seconds)}{each} in the process that trains",
        f"compute what {one.sampler} needs once, in its __init__ or beside the data, and not while it is iterated",
    )
