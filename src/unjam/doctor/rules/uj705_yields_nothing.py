"""The loader yields no batch at all.

What happened: a whole epoch ended without a batch and without an error: the body of the training
loop never runs.

Why: `drop_last=True` with a batch larger than the dataset (or than each worker's share of a
stream), a dataset that filtered out every sample, a sampler without indices.

How to confirm: look at `len(loader)`; run an epoch without workers.

How to fix: use a smaller batch or `drop_last=False`, or raise an error when the dataset is empty.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ705", "yields-nothing")


def detect(case: Case) -> Finding | None:
    """Find an epoch without batches."""
    loader = case.loader
    empty = next(
        (t for t in (case.alone, case.as_is) if t is not None and t.fine and t.epochs and not t.batches and not t.bad),
        None,
    )
    if empty is None or any(trial.batches for trial in case.trials):
        return None
    if case.watched_loader is not None and any(one.batches for one in case.watched_loader.epochs):
        return None  # the program got batches: it consumed what the trials would have read
    dropped = sum(empty.dropped)
    small = loader.drop_last and loader.length is not None and loader.batch_size and loader.length < loader.batch_size
    why = (
        f"drop_last=True with batch_size={loader.batch_size} and {loader.length} samples"
        if small
        else f"drop_last=True drops the {dropped} samples of each share"
        if dropped
        else f"{loader.dataset} has {loader.length} samples"
        if loader.length is not None
        else f"{loader.dataset} yields nothing"
    )
    return Finding(
        RULE,
        f"the loader yields no batch: {why}",
        why.split(" and ", maxsplit=1)[0] if small else loader.dataset,
        (f"an epoch ended after {duration(empty.epochs[0])} without a batch and without an error",),
        OBSERVED,
        f"use batch_size={loader.length} or smaller, or drop_last=False"
        if small
        else f"raise an error when {loader.dataset} is empty",
        loader.made_at,
    )
