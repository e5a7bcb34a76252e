"""A different number of workers would be much faster.

What happened: the samples take long to load, and the loader has no workers (or far more workers
than the machine has processors).

Why: without workers the training waits for every sample. If there are many more workers than
processors, they only compete with each other and need memory.

How to confirm: time the same samples with both numbers of workers.

How to fix: start with the number that the finding suggests.

Limits: measured on this machine without a training step.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Severity
from unjam.doctor.queries.trials import basis_faster_with, mean_seconds
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ606", "wrong-number-of-workers", Severity.WARNING, symptom="slow")
WORTH = 2.5  # seconds in an epoch
FASTER = 1.5


def detect(case: Case) -> Finding | None:
    """Find a loader that is much faster with a different number of workers."""
    loader, alone, cpus = case.loader, case.alone, case.process_facts.cpus
    if alone is None or not alone.fine or not loader.length or alone.bad:
        return None
    epoch = mean_seconds(alone) * loader.length
    if loader.num_workers == 0:
        better = max(2, min(4, cpus))
        if epoch < WORTH or mean_seconds(alone) < 0.003:
            return None
    elif loader.num_workers > 4 * cpus:
        better = cpus
        if epoch / cpus < 2:
            return None
    else:
        return None
    now = alone.plan.changed(workers=loader.num_workers, measured=True, tolerant=False, epochs=1, seconds=4.0)
    if loader.num_workers:
        now = now.changed(start=loader.start_method)
    then = now.changed(workers=better, start=loader.start_method)
    base, other = case.rates(now, then)
    if base and other and loader.length / base - loader.length / other < 1:
        return None
    return Finding(
        RULE,
        f"{other / (base or 1):.1f} times faster with num_workers={better} than with {loader.num_workers}",
        f"num_workers={loader.num_workers} at {loader.made_at}",
        (
            f"{loader.num_workers} workers: {base:,.1f} samples/s; {better}: {other:,.1f}, on {cpus} processors",
            f"an epoch of {loader.length:,} samples: {duration(loader.length / (base or 1))}, and {duration(loader.length / (other or 1))}",
        ),
        basis_faster_with(now, then, FASTER),
        f"num_workers={better}",
        loader.made_at,
    )
