"""The training step fails on the last, smaller batch.

What happened: every batch succeeded except the last one of an epoch, which has fewer samples than the others.

Why: batch normalization cannot train on a single sample; a hidden state, a buffer or a reshape may assume a fixed batch size.

How to confirm: the length of the dataset modulo the batch size is the size of the batch that fails.

How to fix: use `drop_last=True` for the training loader, or take the size from the batch itself.

Limits: the size is inferred to be the cause because the batch that failed was the last one.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.lengths import LastBatchSmaller
from unjam.doctor.rules.rule import Rule
from unjam.units import count

RULE = Rule("UJ540", "last-batch-smaller", symptom="raised")


def words(one: LastBatchSmaller) -> Words:
    """Say how small the last batch is."""
    return Words(
        f"the last batch of {one.loader} has {count(one.rest, 'sample')} instead of {one.size}, and the program fails on it: {one.failed}",
        "use drop_last=True for the training loader, or take the size from the batch",
    )
