"""The samples are so cheap that workers make loading slower.

What happened: loading without workers is faster: making a sample takes less time than sending it
to another process.

Why: every batch that is sent between processes costs a fraction of a millisecond. Samples that take
a few microseconds, in small batches, cost less to make than to send.

How to confirm: time the same samples with workers and without.

How to fix: use `num_workers=0`; or larger batches; or load whole batches in the dataset
(`__getitems__`, or `batch_size=None` over a dataset of batches), which also saves the cost per
sample.

Limits: measured without a training step, which would hide part of the workers' time.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Severity
from unjam.doctor.queries.trials import basis_faster_with, mean_seconds
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ605", "too-small-for-workers", Severity.WARNING, symptom="slow")
WORTH, WARN = 2.0, 10.0  # seconds in an epoch that are worth a note, and a warning
SLOWER = 1.5


def detect(case: Case) -> Finding | None:
    """Find a loader that is much faster without workers."""
    loader, alone, as_is = case.loader, case.alone, case.as_is
    if alone is None or as_is is None or not as_is.fine or not loader.length or loader.length < 2000:
        return None
    if mean_seconds(alone) > 0.0005 or (alone.rate and as_is.rate > alone.rate * 1.2):
        return None
    timed = as_is.plan.changed(measured=True, epochs=1, seconds=3.0, limit=40_000)
    bare = timed.changed(workers=0, start="")
    with_workers, without = case.rates(timed, bare)
    lost = loader.length / with_workers - loader.length / without if with_workers and without else 0.0
    if with_workers and without and lost < WORTH:
        return None
    return Finding(
        RULE,
        f"{without / (with_workers or 1):.1f} times faster without workers: a sample takes {duration(mean_seconds(case.tried(bare)))}",
        f"num_workers={loader.num_workers}, batch_size={loader.batch_size}",
        (
            f"{loader.num_workers} workers: {with_workers:,.0f} samples/s; none: {without:,.0f} samples/s",
            f"in an epoch of {loader.length:,} samples: {duration(lost)} lost",
        ),
        basis_faster_with(timed, bare, SLOWER),
        f"use num_workers=0, or batches larger than {loader.batch_size}",
        loader.made_at,
        severity=None if lost > WARN else Severity.NOTE,
    )
