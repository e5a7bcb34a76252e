"""The process that trains spends its waits on unpickling batches.

What happened: while it waited for a batch, the process that trains was computing: it put together what a worker had sent.

Why: tensors travel through shared memory and cost nothing to receive. Lists, dictionaries, strings and other Python objects are
pickled in the worker and made anew, one by one, in the process that trains. More workers do not help.

How to confirm: a batch of tensors alone comes much faster.

How to fix: return tensors or arrays; encode texts as numbers, join many small things into few large ones, leave out what the training
does not use.

Limits: seen from outside, by looking at the process again and again.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import MainUnpickles
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ616", "batches-costly-to-receive", Severity.WARNING, symptom="slow")
NAMES = (MainUnpickles,)


def words(one: MainUnpickles) -> Words:
    """Say how much of the wait is spent on it."""
    return Words(
        f"the process that trains spends {one.share:.0%} of its waits for {one.loader} on unpickling batches",
        "return tensors or arrays from the workers in place of lists, dictionaries and strings, or fewer and larger ones",
    )
