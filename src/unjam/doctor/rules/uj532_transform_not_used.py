"""A dataset has a transform that nothing uses.

What happened: the dataset, or a wrapper around it, holds a transform, and no function that loads
samples mentions it.

Why: a wrapper stores a transform and does not call it, or returns the samples of the inner dataset
directly.

How to confirm: print in the transform.

How to fix: call it in `__getitem__`, or remove it.

Limits: found by reading the code of the classes and functions that loading can reach; a use through
`getattr` with a computed name is not detected.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.queries.loaders import attribute_name
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ532", "transform-not-used", Severity.WARNING)
WORDS = ("transform", "augment", "aug", "preprocess", "normaliz", "normalis", "pipeline", "tokeniz")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a transform whose name no loading function uses."""
    for loader in watched.loaders:
        for path, at in loader.description.unused.items():
            if not any(word in attribute_name(path).lower() for word in WORDS):
                continue
            return Finding(
                RULE,
                f"{path} is never called: no function that loads samples of {loader.name} uses it",
                path,
                (
                    f"type of {path}: {loader.description.transforms.get(path)}",
                    *line_evidence("set at", at),
                ),
                AGREES,
                f"call {path} in __getitem__, or remove it",
                at or loader.made or loader.place,
            )
    return None
