"""Two loaders draw from one generator.

What happened: the loader of the training and another one have the same generator, and both were used.

Why: each pass takes numbers from it, also a pass that does not shuffle. So the order of the training
depends on how often the other loader was used before. A run without the evaluation, or with one more, trains
in another order; and a state that is saved for one loader is not the other's.

How to confirm: skip the evaluation, and compare the order of the second epoch.

How to fix: give each loader a generator of its own, with a seed of its own.

Limits: only generators that loaders and samplers hold are compared. Loaders without one all draw from
torch's own generator, as everything else does.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.mechanisms.loaders import trainers
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ536", "generator-shared", Severity.NOTE)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find two loaders with one generator, the first of which trains and shuffles."""
    del cases
    for loader in trainers(watched):
        for other in watched.loaders:
            if other is loader or other.pid != loader.pid or not loader.description.random:
                continue
            if set(_generators(loader)) & set(_generators(other)) and _between(loader, other):
                return [_finding(loader, other)]
    return []


def _generators(loader: WatchedLoader) -> list[int]:
    return list(loader.description.generators)


def _between(loader: WatchedLoader, other: WatchedLoader) -> bool:
    """Whether the other one was used between two passes, or before them: one loader that is made anew is not."""
    began = [epoch.began for epoch in loader.epochs]
    return loader.made != other.made and any(
        early < epoch.began < late for early, late in itertools.pairwise([0.0, *began]) for epoch in other.epochs
    )


def _finding(loader: WatchedLoader, other: WatchedLoader) -> Finding:
    return Finding(
        RULE,
        f"{loader.name} and {other.name} draw from one generator: the order of the training depends on both",
        f"generator of {loader.name}",
        (
            "both hold the same generator object, and both were used",
            "each pass takes numbers from it, also one that does not shuffle",
        ),
        OBSERVED,
        f"give {other.name} a generator of its own",
        other.made or other.place,
    )
