"""Setting an attribute on one part of a split also changes the other part.

What happened: the program sets an attribute through `part.dataset`, and the other part of the split
uses the same dataset object.

Why: `random_split` and `Subset` share the dataset. `val.dataset.transform = plain` also removes the
transform from training.

How to confirm: `train.dataset is val.dataset`.

How to fix: create two datasets, one for each purpose, and use the same indices.

Limits: only assignments in the program's own files are found.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import sets_through
from unjam.doctor.proof import AGREES
from unjam.doctor.queries.loaders import evaluators, shared_objects, trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ529", "shared-dataset-edited")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find an assignment through `.dataset` where two Subsets share the dataset."""
    for other in evaluators(watched):
        for train in trainers(watched):
            parts = train.description.subset and other.description.subset
            if not parts or "base" not in shared_objects(other, train):
                continue
            files = {place.file for place in (other.made, other.place, train.made, train.place) if place is not None}
            for file in sorted(files):
                for place, text, name in sets_through(file, "dataset"):
                    if not any(path.endswith(f".{name}") for path in train.description.reads):
                        continue
                    return Finding(
                        RULE,
                        f"{text} also changes the other part of the split: both use one {train.description.base} object",
                        text,
                        (
                            f"set at {quoted(place)}",
                            f"{train.name} and {other.name} are parts of the same object",
                            f"samples use {name}",
                        ),
                        AGREES,
                        f"create two {train.description.base} objects, one for training and one for evaluation, with the same indices",
                        place,
                    )
    return None
