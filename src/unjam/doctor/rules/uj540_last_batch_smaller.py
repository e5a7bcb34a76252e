"""The training step cannot handle the last batch, which is smaller.

What happened: every batch went well but the last one of a pass, which has fewer samples than the others: what is left over.

Why: batch normalization cannot train on a single sample; a hidden state, a buffer or a reshape may be made for one size of batch.

How to confirm: the length of the dataset, modulo the batch size, is the size of the batch that fails.

How to fix: `drop_last=True` for the training loader, or take the size from the batch itself.

Limits: that the size is the reason is concluded from which batch failed.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.lengths import LastBatchSmaller
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ540", "last-batch-smaller", symptom="raised")
NAMES = (LastBatchSmaller,)


def words(one: LastBatchSmaller) -> Words:
    """Say how small it is."""
    return Words(
        f"the last batch of {one.loader} has {count(one.rest, 'sample')} in place of {one.size}, and the program fails with it: {one.failed}",
        "drop_last=True for the training loader, or code that takes the size from the batch",
    )
