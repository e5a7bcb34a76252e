"""An iterable dataset loses samples when it is split among workers.

What happened: an iterable dataset that splits its stream among the workers delivers fewer of its
samples with workers than without.

Why: arithmetic that rounds down (`len // workers` leaves a remainder), a shard that no worker takes
because the numbers of workers and shards differ, an `islice` that starts at the wrong number.

How to confirm: compare the samples delivered without workers with those delivered with workers.

How to fix: split with `islice(items, info.id, None, info.num_workers)`, or give the last worker the
remainder.

Limits: samples are compared only by the parts that do not depend on random numbers.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.loaders import is_one_of_ranks
from unjam.doctor.queries.trials import stable_counts
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ503", "iterable-loses-samples", symptom="lost")


def detect(case: Case) -> Finding | None:
    """Find samples that are delivered without workers and not with them."""
    if is_one_of_ranks(case) or case.loader.batch_size is None:
        return None  # the share of a rank, and batches that the stream itself makes, may depend on the workers
    trial, alone = case.compared, case.alone
    if not case.loader.iterable or trial is None or alone is None or not alone.epochs or not trial.epochs or trial.bad:
        return None
    usual, now = stable_counts(case, alone), stable_counts(case, trial)
    dropped = sum(trial.dropped)
    if usual is None or now is None:
        return None
    lost = usual - now
    missing = sum(lost.values())
    if not missing:
        return None
    seen = case.watched_loader.complete_epochs if case.watched_loader is not None else []
    if any(epoch.loaded >= len(alone.of_epoch(0)) for epoch in seen):
        return None  # the program got them: the trial started with data for one epoch only
    expected, delivered = len(alone.of_epoch(0)), len(trial.of_epoch(0))
    return Finding(
        RULE,
        f"{count(missing, 'sample')} of {expected:,} {'is' if missing == 1 else 'are'} never delivered with {case.loader.num_workers} workers",
        f"{case.loader.dataset}.__iter__",
        (
            f"without workers: {expected:,} samples; with {case.loader.num_workers}: {delivered:,}",
            "by worker: "
            + ", ".join(
                f"{w}: {sum(s.worker == w for s in trial.of_epoch(0))}" for w in range(case.loader.num_workers)
            ),
            f"drop_last drops {dropped} more" if dropped else "",
        ),
        OBSERVED,
        f"in {case.loader.dataset}.__iter__ use itertools.islice(items, info.id, None, info.num_workers), or give the last worker the remainder",
        case.loader.dataset_place,
    )
