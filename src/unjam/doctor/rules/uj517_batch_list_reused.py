"""The batch sampler changes a list (or array) after yielding it.

What happened: the program's own batch sampler reuses one list for all batches. The loader prefetches
batches and gives the list to a background thread that sends it to the worker later: by then it
holds other indices.

Why: lists are passed by reference, also between threads.

How to confirm: two batches of the sampler are the same object.

How to fix: `yield list(batch)`, or create a new list for each batch.

Limits: without workers the reuse has no effect.
"""

from __future__ import annotations

from collections import Counter

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source_places import method_line
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ517", "batch-list-reused", symptom="lost", explains=("raised",))


def detect(case: Case) -> Finding | None:
    """Find a batch sampler that yields the same list for all batches."""
    if not case.loader.list_reused or not case.loader.num_workers:
        return None
    alone, trial = case.alone, case.compared
    usual = Counter(s.index for s in alone.of_epoch(0)) if alone and alone.epochs else None
    now = Counter(s.index for s in trial.of_epoch(0)) if trial and trial.epochs else None
    wrong = usual is not None and now is not None and usual != now
    return Finding(
        RULE,
        "the batch sampler changes a batch after yielding it, while it is being sent to a worker",
        f"{_name(case)}.__iter__",
        (
            "the content of a batch changes when the next batches are drawn",
            f"with workers {sum((now - usual).values())} samples are repeated and {sum((usual - now).values())} are missing"
            if wrong and now and usual
            else "",
        ),
        OBSERVED if wrong else AGREES,
        "yield list(batch) from the batch sampler",
        _yields(case) or case.loader.made_at,
    )


def _name(case: Case) -> str:
    return str(
        (case.watched_loader.description.batch_sampler if case.watched_loader is not None else "")
        or case.loader.sampler
    )


def _yields(case: Case) -> Place | None:
    file = case.watched_loader.description.sampler_file if case.watched_loader is not None else ""
    return method_line(file, _name(case), "__iter__") if file else None
