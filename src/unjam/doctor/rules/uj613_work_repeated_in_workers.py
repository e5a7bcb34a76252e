"""Every worker of a stream makes all samples, and gives away only its share of them.

What happened: a sample costs each worker as much time of a processor as the samples of all workers together, so more workers
are no faster.

Why: the share of a worker is taken at the end of the stream, after reading, decoding and transforming. What belongs to the other
workers is made and thrown away.

How to confirm: count the calls of the decoder in one worker: there are as many as the stream has samples.

How to fix: take the share first: of the files, or of the undecoded records, before anything is done with them.

Limits: the cost is measured in the trials of the loader, on a part of the stream.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import EveryWorkerDoesAll
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ613", "work-repeated-in-workers", Severity.WARNING, symptom="slow")
NAMES = (EveryWorkerDoesAll,)


def words(one: EveryWorkerDoesAll) -> Words:
    """Say how much each worker does, and where to take its share."""
    return Words(
        f"each of the {one.workers} workers of {one.loader} makes all samples and throws away those of the others: "
        f"{one.each / one.alone:.1f} times the work for each sample",
        "take the worker's share of the files or of the raw records, before they are decoded and transformed",
    )
