"""An iterable dataset yields every sample in every worker.

What happened: an iterable dataset is copied into every worker, and each copy yields all of its
samples: with N workers an epoch contains every sample N times.

Why: torch cannot split a stream; the dataset must do it.

How to confirm: the same samples come from several workers; if each worker takes only its share,
each sample comes once.

How to fix: in `__iter__` call `torch.utils.data.get_worker_info()` and take every N-th item, or
give each worker its own files.

Limits: samples are compared only by the parts that do not depend on random numbers.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Trial
from unjam.doctor.mechanisms.splits import WorkerSharesOverlap
from unjam.doctor.proof import Toggle
from unjam.doctor.queries.loaders import is_one_of_ranks
from unjam.doctor.queries.trials import stable_counts
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ502", "iterable-repeated", symptom="lost")


def words(one: WorkerSharesOverlap) -> Words:
    """Say how many samples are repeated."""
    if one.whole:
        return Words(
            f"each worker yields the whole stream of {one.loader}: {one.twice:,} of {one.of:,} samples of an epoch are repeated",
            f"in {one.dataset}.__iter__ let each worker take its share: get_worker_info().id out of get_worker_info().num_workers",
        )
    return Words(
        f"the shares of the workers of {one.loader} overlap: {one.twice:,} of {one.of:,} samples of an epoch come from two workers",
        f"in {one.dataset}.__iter__ put the items into the same order in all workers (with a shared seed) before each takes its share",
    )


def detect(case: Case) -> Finding | None:
    """Find samples that are delivered more often with workers than without."""
    if is_one_of_ranks(case):
        return None  # the share of a rank may depend on the workers
    trial, alone = case.compared, case.alone
    if not case.loader.iterable or trial is None or alone is None or case.loader.num_workers < 2:
        return None
    usual, now = stable_counts(case, alone), stable_counts(case, trial)
    delivered, expected = len(trial.of_epoch(0)), len(alone.of_epoch(0))
    if usual is None or now is None or not expected or delivered < 2:
        return None
    times_each = case.loader.num_workers
    if case.loader.batch_size is None and any(now[one] != times_each * usual[one] for one in usual):
        return None  # batches that the stream itself makes may depend on the workers
    whole = alone.outcome == "finished" or len(alone.epochs) > 0
    more = now - usual
    if not more:
        return None
    if whole and delivered < expected * 1.2:
        return None
    if not whole and not _shared_by_workers(case, trial):
        return None
    plan = trial.plan.changed(shard=True)
    times = delivered / expected if whole else case.loader.num_workers
    return Finding(
        RULE,
        f"each worker yields the whole stream: an epoch with {case.loader.num_workers} workers contains each sample {times:.1f} times",
        f"{case.loader.dataset}.__iter__",
        (
            f"without workers: {expected:,} samples; with {case.loader.num_workers}: {delivered:,}",
            f"for example one sample is delivered {max(now.values())} times with workers, {max(usual.values())} without",
        ),
        Toggle(trial.plan, (plan,), lambda _, cut: not ((stable_counts(case, cut) or now) - usual)),
        f"in {case.loader.dataset}.__iter__: info = get_worker_info(); "
        "yield from itertools.islice(items, info.id, None, info.num_workers) when info is not None",
        case.loader.dataset_place,
    )


def _shared_by_workers(case: Case, trial: Trial) -> bool:
    """Whether several workers delivered the same samples, which come once without workers."""
    alone = case.alone
    if alone is None or len({s.digest for s in alone.of_epoch(0)}) < len(alone.of_epoch(0)):
        return False
    by_sample: dict[str, set[int]] = {}
    for sample in trial.of_epoch(0):
        by_sample.setdefault(sample.digest, set()).add(sample.worker)
    return sum(len(workers) > 1 for workers in by_sample.values()) > len(by_sample) * 0.3
