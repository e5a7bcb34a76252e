"""Epochs of one loader have different lengths.

What happened: a later epoch has fewer (or more) batches than the first one.

Why: something removes or adds samples while the program runs: a list that is popped, a cursor that
is not reset, a generator that is exhausted, a sampler that carries samples over to the next epoch.

How to confirm: print the number of batches of each epoch.

How to fix: let `__iter__` and `__getitem__` leave the dataset unchanged; reset cursors at the start
of `__iter__`.

Limits: a dataset that is meant to grow (a replay buffer, a curriculum) is also reported, as a note.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.queries.loaders import changed_paths
from unjam.doctor.rules.rule import Finding, Rule, dataset_place

RULE = Rule("UJ526", "epochs-differ-in-length", Severity.WARNING, symptom="short")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the number of batches of the complete epochs of each loader."""
    for loader in watched.loaders:
        numbers = [epoch.batches for epoch in loader.complete_epochs]
        if len(set(numbers)) < 2:
            continue
        if loader.description.batched and loader.description.batch_size is None and not loader.iterable:
            continue  # batches of varying size: their number means nothing
        expected = [epoch.expected for epoch in loader.complete_epochs]
        if None not in expected and expected == numbers:
            continue  # the change is intended: len(loader) was right before each epoch
        if loader.iterable and loader.workers and not _changed_in_workers(loader):
            continue  # the source of the stream changed, but reading did not change it
        fewer = min(numbers[1:]) < numbers[0]
        changed = changed_paths(loader)
        listed = ", ".join(map(str, numbers[:6]))
        return Finding(
            RULE,
            f"epochs of {loader.name} have different numbers of batches: {listed}",
            changed[0] if changed else f"{loader.description.dataset}",
            (
                f"batches of the complete epochs: {listed}",
                f"{changed[0]} changed in between" if changed else "",
            ),
            OBSERVED,
            f"do not change {changed[0] if changed else 'the dataset'} while samples are loaded, or reset it before each epoch",
            dataset_place(cases, loader) or loader.made or loader.place,
            severity=None if fewer else Severity.NOTE,
        )
    return None


def _changed_in_workers(loader: WatchedLoader) -> bool:
    """Whether the workers' datasets changed while they were read, or this is unknown."""
    known = [epoch for epoch in loader.epochs if epoch.worker_hashes and epoch.worker_end_hashes]
    return not known or any(
        held.get(path) != value
        for epoch in known
        for worker, held in epoch.worker_end_hashes.items()
        for path, value in epoch.worker_hashes.get(worker, {}).items()
    )
