"""Training and evaluation map the same class to different labels.

What happened: the datasets for training and for evaluation each hold a table from names to numbers,
and the same name has a different number in each.

Why: each dataset builds its own table, from the names that it happens to have, or in the order of a
set or of the folder. Accuracy is then computed against wrong labels.

How to confirm: compare the two tables.

How to fix: build the table once and pass it to both datasets; sort the names.

Limits: only dictionaries and lists with the same name in both datasets are compared.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source_places import attribute_line
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.loaders import evaluators, trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ527", "label-maps-differ")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the tables of each evaluation with those of the training in the same process."""
    for other in evaluators(watched):
        for train in trainers(watched):
            if train.pid != other.pid:
                continue
            for name, table in train.description.maps.items():
                other_table = other.description.maps.get(name, {})
                wrong = [key for key, value in table.items() if key in other_table and other_table[key] != value]
                if not wrong:
                    continue
                key = wrong[0]
                return Finding(
                    RULE,
                    f"{name} differs between training and evaluation: {key!r} is {table[key]} and {other_table[key]}",
                    f"dataset.{name}",
                    (
                        f"{train.name}: {key!r} is {table[key]}; {other.name}: {key!r} is {other_table[key]}",
                        f"names with different numbers: {len(wrong)} of {len(table)}",
                    ),
                    OBSERVED,
                    f"build {name} once, from all names in a fixed order, and pass it to both datasets",
                    attribute_line(other.home, name) or other.home or other.made or other.place,
                )
    return None
