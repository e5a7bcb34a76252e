"""The evaluation applies the training's random transform.

What happened: the same index gives a different sample in each evaluation, because the dataset under
both `Subset`s is one object, with the random transform that is meant for training.

Why: `random_split` and `Subset` only choose indices. What the dataset does with a sample is the
same for both parts.

How to confirm: load one validation sample twice.

How to fix: create two datasets, one with and one without the random transform, and use the same
indices for their `Subset`s.

Limits: only a dataset that training and evaluation share is reported. Random numbers from unknown
generators are not detected.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.queries.loaders import evaluators, shared_objects, trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ523", "evaluation-is-random", Severity.WARNING)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find an evaluation whose samples draw random numbers in a dataset that training uses."""
    for loader in evaluators(watched):
        drawn = {name for epoch in loader.epochs for sample in epoch.samples for name in sample.drew}
        for train in trainers(watched):
            both = shared_objects(loader, train)
            if not drawn or "base" not in both or loader.iterable or not train.description.subset:
                continue
            changed = _changes(loader)
            paths = [path for path in loader.description.transforms if path in both]
            culprit = paths[0] if paths else f"{loader.description.base}"
            return Finding(
                RULE,
                f"the samples of {loader.name} are random: it shares its dataset with the training loader ({train.name})",
                culprit,
                (
                    f"its samples draw random numbers from {', '.join(sorted(drawn))}",
                    f"sample {changed} differs from one evaluation to the next" if changed is not None else "",
                    f"both loaders use the same {loader.description.base} object"
                    + (f" with {', '.join(paths)}" if paths else ""),
                ),
                OBSERVED if changed is not None else AGREES,
                f"create a second {loader.description.base} without the random transform for the evaluation, with the same indices",
                loader.made or loader.place,
            )
    return None


def _changes(loader: WatchedLoader) -> Any:
    seen: dict[Any, str] = {}
    for epoch in loader.epochs:
        for sample in epoch.samples:
            if seen.setdefault(sample.index, sample.digest) != sample.digest:
                return sample.index
    return None
