"""`drop_last` drops an incomplete batch in every worker.

What happened: with an iterable dataset each worker makes batches from its own share.
`drop_last=True` drops the incomplete batch of every worker, not only one at the end of the epoch.

Why: a worker does not know the remaining samples of the other workers.

How to confirm: with `drop_last=False` nothing is missing.

How to fix: use `drop_last=False`, shares whose length is a multiple of the batch size, or batch the
samples after the loader (`batch_size=None`).

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Severity, Toggle
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ504", "drop-last-per-worker", Severity.WARNING, symptom="lost")

MUCH = 0.1  # share of an epoch that is worth reporting even if no more is dropped than without workers


def detect(case: Case) -> Finding | None:
    """Find more dropped samples with workers than without."""
    trial, alone, loader = case.compared, case.alone, case.loader
    if not loader.iterable or not loader.drop_last or trial is None or alone is None or not trial.epochs:
        return None
    epochs = max(1, len(trial.epochs))
    dropped = sum(trial.dropped) / epochs
    usual = sum(alone.dropped) / max(1, len(alone.epochs))
    lost = dropped / (dropped + len(trial.of_epoch(0))) if dropped else 0.0
    if dropped < 1 or (dropped <= usual and lost < MUCH):
        return None
    plan = trial.plan.changed(whole=True)
    return Finding(
        RULE,
        f"drop_last=True drops {count(round(dropped), 'sample')} per epoch: an incomplete batch in each of {loader.num_workers} workers",
        f"drop_last=True at {loader.made_at}",
        (
            f"with {loader.num_workers} workers {count(round(dropped), 'sample')} dropped, without workers {round(usual)}",
            "a stream that is not shuffled drops the same samples in every epoch",
        ),
        Toggle(trial.plan, (plan,), lambda _, whole: not whole.dropped),
        "use drop_last=False, or give each worker a share whose length is a multiple of the batch size",
        loader.made_at,
    )
