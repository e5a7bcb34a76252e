"""The dataset's length differs from the number of samples that it yields.

What happened: an iterable dataset reports one length and yields a different number.
Progress bars, schedulers and `drop_last` arithmetic that rely on `len(loader)` are wrong; torch
warns only if the dataset yields more samples than its length.

Why: filtering inside `__iter__`, a length counted in files instead of samples, or the length of the
whole stream in a dataset that yields a share of it.

How to confirm: count the samples of one epoch without workers.

How to fix: return the true number, or remove `__len__`.

Limits: samples are counted without workers, and only if the doctor reached the end of the epoch.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source_places import method_line
from unjam.doctor.mechanisms.lengths import CountedEarlier
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.queries.failures import loader_of
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ512", "wrong-length", Severity.WARNING)


def words(one: CountedEarlier) -> Words:
    """Say what was counted too early."""
    harm = f": {one.failed}" if one.failed else ""
    return Words(
        f"{one.culprit} has {one.now:,} samples, but indices are still drawn for {one.then:,}{harm}",
        f"filter or extend {one.culprit} before the concatenation or subset over it is created, or create that again afterwards",
        severity=Severity.ERROR if one.failed else None,
    )


def detect(case: Case) -> Finding | None:
    """Compare the number of samples with len()."""
    alone, loader = case.alone, case.loader
    if not loader.iterable or loader.length is None or alone is None or not alone.epochs or alone.bad:
        return None
    seen = len(alone.of_epoch(0))
    if seen == loader.length:
        return None
    return Finding(
        RULE,
        f"{loader.dataset} has length {loader.length:,} but yields {seen:,} samples",
        f"{loader.dataset}.__len__",
        (f"one epoch without workers: {seen:,} samples; len(dataset): {loader.length:,}",),
        OBSERVED,
        f"return the true number from {loader.dataset}.__len__, or remove it",
        loader.dataset_place,
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the number of batches of each whole epoch with len(loader)."""
    for loader in watched.loaders:
        # len(loader) also counts a batch that raised and that the program skipped
        raised = [one for one in watched.failures if one.stage == "next" and loader_of(watched, one) is loader]
        if raised or (loader.iterable and loader.workers):
            continue  # a stream with workers: each worker may have a short last batch
        wrong = next((one for one in loader.complete_epochs if one.expected not in (None, one.batches)), None)
        if wrong is None:
            continue
        sampler, file = loader.description.sampler, loader.description.sampler_file
        own = loader.description.batch_sampler if not loader.iterable else ""
        culprit = f"{own or (sampler if not loader.iterable else loader.description.dataset)}.__len__"
        return Finding(
            RULE,
            f"len(loader) is {wrong.expected:,}, and an epoch has {wrong.batches:,} batches ({loader.name})",
            culprit,
            (f"epoch {wrong.number + 1}: {wrong.batches:,} batches; len(loader) before it: {wrong.expected:,}",),
            OBSERVED,
            f"return the true number from {culprit}",
            method_line(file, culprit.partition(".")[0], "__len__") or loader.made or loader.place,
        )
    return None
