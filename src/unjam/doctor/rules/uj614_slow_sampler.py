"""The sampler is the bottleneck.

What happened: the main process spent seconds in the sampler, while the workers were idle.

Why: a sampler runs in the process that iterates the loader, never in a worker. A sampler that loads samples to find their lengths,
sorts everything again for every batch, or repeatedly scans all labels delays the training, however many workers there are.

How to confirm: time `for indices in loader.batch_sampler: pass`.

How to fix: compute what the sampler needs (lengths, classes, weights) once, in its __init__, and keep it in arrays or in a file.

Limits: time in which a sampler waits for something else, such as another rank, is counted too.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import SamplerTakesTime
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule
from unjam.units import duration

RULE = Rule("UJ614", "slow-sampler", Severity.WARNING, symptom="slow")


def words(one: SamplerTakesTime) -> Words:
    """Say how long the sampler took, and what to compute only once."""
    each = f" ({duration(one.seconds / one.epochs)} per epoch)" if one.epochs > 1 else ""
    return Words(
        f"{one.sampler} of {one.loader} took {duration(one.seconds)}{each} in the main process",
        f"compute what {one.sampler} needs once, in its __init__ or in advance, and not while it is iterated",
    )
