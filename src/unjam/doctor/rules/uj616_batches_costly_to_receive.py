"""The main process spends most of its waiting time unpickling batches.

What happened: while it waited for a batch, the main process was computing: it was unpickling what a worker had sent.

Why: tensors are sent through shared memory and cost nothing to receive. Lists, dictionaries, strings and other Python objects are
pickled in the worker and created again, one by one, in the main process. More workers do not help.

How to confirm: batches that contain only tensors arrive much faster.

How to fix: return tensors or arrays; encode strings as numbers, combine many small objects into a few large ones, leave out what
the training does not use.

Limits: measured from outside, by sampling the process.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import MainUnpickles
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ616", "batches-costly-to-receive", Severity.WARNING, symptom="slow")


def words(one: MainUnpickles) -> Words:
    """Say how much of the wait is spent on unpickling."""
    return Words(
        f"the main process spends {one.share:.0%} of the time that it waits for {one.loader} unpickling batches",
        "return tensors or arrays from the workers instead of lists, dictionaries and strings, or fewer and larger objects",
    )
