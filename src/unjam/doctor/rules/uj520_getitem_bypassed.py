"""An inherited `__getitems__` bypasses the dataset's `__getitem__`.

What happened: the dataset's class defines `__getitem__`, and a base class defines `__getitems__`.
torch prefers `__getitems__`, so what the class adds (a transform, a check) never runs.

Why: torch loads whole batches through `__getitems__` if a dataset has it. `Subset` has it, and so
do many library datasets.

How to confirm: `dataset.__getitems__([0])[0]` and `dataset[0]` differ.

How to fix: define `__getitems__` next to `__getitem__`:
`def __getitems__(self, indices): return [self[i] for i in indices]`.

Limits: the two methods are compared for one sample, with the same seeds.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ520", "getitem-bypassed")


def detect(case: Case) -> Finding | None:
    """Find a __getitems__ of a base class that returns a different sample than __getitem__."""
    known = case.loader.bypassed_getitem
    if known is None:
        return None
    owner, base, place = known
    return Finding(
        RULE,
        f"{owner}.__getitem__ is never called: torch loads batches with {base}.__getitems__",
        f"{owner}.__getitem__",
        (
            f"dataset.__getitems__([0])[0] and dataset[0] differ; {base} defines __getitems__, {owner} does not",
            *line_evidence("bypassed:", place),
        ),
        OBSERVED,
        f"define __getitems__ in {owner}: return [self[index] for index in indices]",
        place or case.loader.dataset_place,
        "+    def __getitems__(self, indices):\n+        return [self[index] for index in indices]",
    )
