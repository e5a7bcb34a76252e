"""Every worker of a stream processes all samples and discards those of the other workers.

What happened: for each sample that it delivers, each of N workers spends the processor time of N samples, so more
workers are no faster.

Why: a worker's share is selected at the end of the stream, after reading, decoding and transforming. The samples of the other
workers are made and discarded.

How to confirm: count the calls of the decoder in one worker: there are as many as the stream has samples.

How to fix: select the share first, from the files or the undecoded records, before any processing.

Limits: the cost is measured in the trials of the loader, on a part of the stream.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import EveryWorkerDoesAll
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ613", "work-repeated-in-workers", Severity.WARNING, symptom="slow")


def words(one: EveryWorkerDoesAll) -> Words:
    """Say how much each worker does, and where to select its share."""
    return Words(
        f"each of the {one.workers} workers of {one.loader} loads all samples and discards those of the others: "
        f"{one.each / one.alone:.1f} times the work for each sample that it delivers",
        "select the worker's share from the files or the raw records, before they are decoded and transformed",
    )
