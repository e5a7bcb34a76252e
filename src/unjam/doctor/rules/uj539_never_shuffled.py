"""The training data is sorted and never shuffled.

What happened: every epoch used the samples in the order in which they are stored, and they are stored sorted by kind: all of one
class, then all of the next.

Why: without `shuffle=True` or a sampler, a loader goes from the first sample to the last; a stream follows the order of its
files. A batch then contains only one class, and the model forgets the others in the meantime.

How to confirm: print the labels of a few batches.

How to fix: use `shuffle=True`; for a stream, shuffle the files and use a shuffle buffer, or write the files in a random order.

Limits: the doctor does not know which value is the label: it may be one that is meant to be sorted, such as the number of a
recording.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.order import SortedByValue
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ539", "never-shuffled", Severity.WARNING)


def words(one: SortedByValue) -> Words:
    """Say that the order is the stored one, and how to change it."""
    return Words(
        f"{one.loader} is never shuffled, and its samples are sorted by a value of {one.kinds} kinds: a batch has only one kind",
        "shuffle the files, and use a shuffle buffer"
        if one.streams
        else "use shuffle=True, if this value is what the model learns",
    )
