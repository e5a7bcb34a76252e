"""Changes that workers make to the dataset do not reach the program.

What happened: loading a sample changes an attribute of the dataset (a counter, a list of seen
items, statistics), and the program reads that attribute afterwards. With workers the program's own
dataset never changes.

Why: every worker works on a copy of the dataset.

How to confirm: after an epoch without workers the attribute has changed, after one with workers it
has not.

How to fix: return the information with the sample; or collect it in the loop.

Limits: attributes that only the dataset itself reads (a cache) are not reported here: no result is
lost, although they do not persist across epochs.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.history import FilledWhileLoading
from unjam.doctor.proof import OBSERVED
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ509", "state-stays-in-worker")


def words(one: FilledWhileLoading) -> Words:
    """Say that samples depend on a container that each worker fills separately."""
    return Words(
        f"samples depend on {one.culprit}, which each worker fills separately: {count(one.wrong, 'sample')} of {one.loader} "
        + ("differs" if one.wrong == 1 else "differ"),
        f"fill {one.culprit} before the loader is created, and only read it while samples are loaded",
    )


def detect(case: Case) -> Finding | None:
    """Find an attribute that the program reads and that loading changes only without workers."""
    alone, trial = case.alone, case.compared
    if alone is None or trial is None or not case.loader.num_workers:
        return None
    lost = [
        name
        for name in alone.dataset_changes.changed
        if name not in trial.dataset_changes.changed and name in case.reading.reads
    ]
    if not lost or not trial.fine:
        return None
    name = lost[0]
    place = case.reading.reads[name]
    return Finding(
        RULE,
        f"the program reads dataset.{name}, which changes only inside the workers",
        f"dataset.{name}",
        (
            f"read at {quoted(place)}",
            f"after an epoch without workers dataset.{name} has changed; with {case.loader.num_workers} workers it has not",
            f"also: {', '.join(lost[1:4])}" if lost[1:] else "",
        ),
        OBSERVED,
        f"return what dataset.{name} collects with the sample, and collect it in the loop",
        place,
    )
