"""Two loaders draw from the same generator.

What happened: the training loader and another loader have the same generator, and both were used.

Why: every epoch draws numbers from it, even one that does not shuffle. The training order therefore
depends on how often the other loader was used before. A run without the evaluation, or with one
more, trains in a different order; and saving the state of one loader does not save that of the
other.

How to confirm: skip the evaluation, and compare the order of the second epoch.

How to fix: give each loader its own generator, with its own seed.

Limits: only generators that loaders and samplers hold are compared. Loaders without one all draw
from torch's global generator, as everything else does.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ536", "generator-shared", Severity.NOTE)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a shuffled training loader and another loader with the same generator."""
    for loader in trainers(watched):
        for other in watched.loaders:
            if other is loader or other.pid != loader.pid or not loader.description.random:
                continue
            if set(loader.description.generators) & set(other.description.generators) and _between(loader, other):
                return Finding(
                    RULE,
                    f"{loader.name} and {other.name} draw from the same generator: the training order depends on both",
                    f"generator of {loader.name}",
                    (
                        "both hold the same generator object, and both were used",
                        "every epoch draws numbers from it, even one that does not shuffle",
                    ),
                    OBSERVED,
                    f"give {other.name} its own generator",
                    other.made or other.place,
                )
    return None


def _between(loader: WatchedLoader, other: WatchedLoader) -> bool:
    """Whether another loader, created on another line, was used between two epochs or before the first."""
    began = [epoch.began for epoch in loader.epochs]
    return loader.made != other.made and any(
        early < epoch.began < late for early, late in itertools.pairwise([0.0, *began]) for epoch in other.epochs
    )
