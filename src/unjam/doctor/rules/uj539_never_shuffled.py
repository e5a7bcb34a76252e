"""The training never shuffles, and its samples are sorted.

What happened: every pass went through the samples in the order in which they are stored, and they are stored one kind after the
other: all of one class, then all of the next one.

Why: without `shuffle=True`, or a sampler, a loader goes from the first sample to the last; a stream gives what its files have. A batch
then has one class only, and the model forgets the others meanwhile.

How to confirm: print the labels of a few batches.

How to fix: `shuffle=True`; for a stream, shuffle the files and use a shuffle buffer, or write the files in a random order.

Limits: which value is the label is not known: it may be one that is meant to be sorted, such as the number of a recording.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.order import SortedByValue
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ539", "never-shuffled", Severity.WARNING)
NAMES = (SortedByValue,)


def words(one: SortedByValue) -> Words:
    """Say that the order is the stored one, and how to change it."""
    return Words(
        f"{one.loader} is never shuffled, and its samples are sorted by a value of {one.kinds} kinds: a batch has one kind only",
        "shuffle the files, and use a shuffle buffer"
        if one.streams
        else "shuffle=True, if this value is what the model learns",
    )
