"""Some workers of a stream have nothing to do.

What happened: all samples came from one worker, or from a few; the other workers ended at once.

Why: the stream gives each worker its share of the files, and there are fewer files than workers; or the share is computed wrongly.

How to confirm: count the samples for each worker (`get_worker_info().id`).

How to fix: divide smaller pieces than files (row groups, records, byte ranges), or write more files than there are workers.

Limits: it is reported only where the training waits for the stream.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.time_spent import WorkersWithoutWork
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ615", "workers-without-work", Severity.WARNING, symptom="slow")
NAMES = (WorkersWithoutWork,)


def words(one: WorkersWithoutWork) -> Words:
    """Say how many work, and how to divide the work."""
    return Words(
        f"{count(one.busy, 'worker')} of the {one.workers} of {one.loader} loads everything, the others nothing",
        "divide smaller pieces among the workers: row groups or records in place of files, or more files than workers",
    )
