"""Some workers of a stream are idle.

What happened: all samples came from one worker, or from a few; the other workers finished at once.

Why: the stream gives each worker its share of the files, and there are fewer files than workers; or the share is computed wrongly.

How to confirm: count the samples for each worker (`get_worker_info().id`).

How to fix: divide smaller units than files (row groups, records, byte ranges), or write more files than there are workers.

Limits: reported only if the training waits for the stream.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import WorkersWithoutWork
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ615", "idle-workers", Severity.WARNING, symptom="slow")


def words(one: WorkersWithoutWork) -> Words:
    """Say how many workers are busy, and how to divide the work."""
    return Words(
        f"{one.busy} of the {one.workers} workers of {one.loader} {'loads' if one.busy == 1 else 'load'} everything, the others nothing",
        "divide smaller units among the workers: row groups or records instead of files, or more files than workers",
    )
