"""A cache stores samples after the random transform.

What happened: a sample drew random numbers when it was first loaded; later epochs draw none and get
exactly the same sample.

Why: the cache stores the output of the random transform. Every epoch then trains on the version
that was drawn first.

How to confirm: load one index twice and compare.

How to fix: cache what is read and decoded, and apply the random transform after the cache.

Limits: needs a second epoch in the same process: persistent workers, or no workers.
"""

from __future__ import annotations

import itertools
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.queries.loaders import by_index, changed_paths, trainers
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule, dataset_place
from unjam.units import count

RULE = Rule("UJ528", "augmentation-frozen", Severity.WARNING, replaces=("UJ514", "UJ107"))


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find samples that drew random numbers once and later were the same without drawing."""
    for loader in trainers(watched):
        same = _frozen(loader)
        if len(same) < 3:
            continue
        grown = next(iter(changed_paths(loader)), "")
        return Finding(
            RULE,
            f"{count(len(same), 'sample')} of {loader.name} are random in the first epoch and never change afterwards",
            grown or f"{loader.description.dataset}",
            (
                f"sample {names(map(str, same))}: random numbers were drawn on first load only; the sample is unchanged since",
                f"{grown} changes while samples are loaded" if grown else "",
            ),
            OBSERVED,
            "cache what is read, and apply the random transform to what the cache returns",
            dataset_place(cases, loader) or loader.made or loader.place,
        )
    return None


def _frozen(loader: WatchedLoader) -> list[Any]:
    found = []
    for before, after in itertools.pairwise(loader.epochs):
        old, new = by_index(before), by_index(after)
        found += [
            index
            for index, sample in old.items()
            if sample.drew and index in new and not new[index].drew and new[index].digest == sample.digest
        ]
    return list(dict.fromkeys(found))
