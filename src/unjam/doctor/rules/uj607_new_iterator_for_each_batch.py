"""Every batch starts a new iterator with new workers.

What happened: each `next(iter(loader))` inside a loop starts all workers, lets each load
`prefetch_factor` batches, takes one batch and discards the rest.

Why: `iter(loader)` begins an epoch.

How to confirm: compare the time of one such call with the time of a batch in a loop.

How to fix: create the iterator once before the loop and call `next` on it; or loop over the loader.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ607", "new-iterator-for-each-batch", Severity.WARNING, symptom="slow")


def detect(case: Case) -> Finding | None:
    """Find next(iter(loader)) in a loop, and its cost."""
    place = case.reading.remade_at
    if place is None or (case.watched_loader is not None and len(case.watched_loader.epochs) < 3):
        return None
    as_is = case.as_is or case.alone
    cost = (as_is.starts[0] + as_is.batches[0].wait) if as_is and as_is.starts and as_is.batches else 0.0
    later = [b.wait for b in as_is.batches[1:]] if as_is else []
    usual = sum(later) / len(later) if later else 0.0
    return Finding(
        RULE,
        f"next(iter(loader)) in a loop starts an epoch for every batch: {duration(cost)} each",
        f"next(iter(loader)) at {place}",
        (
            f"at {quoted(place)}",
            f"a batch from a new iterator: {duration(cost)}; the next batches: {duration(usual)}" if cost else "",
            (
                f"each time {case.loader.num_workers} workers are started and up to "
                f"{max(1, case.loader.num_workers) * case.loader.prefetch_factor - 1} batches are discarded"
            ),
        ),
        OBSERVED,
        f"before the loop: batches = iter(loader); at {place}: next(batches)",
        place,
    )
