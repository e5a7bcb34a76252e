"""A large dataset is pickled for every worker.

What happened: with spawn and forkserver each worker receives the whole dataset by pickle, at the
start of every epoch. That costs time, and one copy in memory for each worker.

Why: everything in the dataset's attributes is part of its pickle, arrays included.

How to confirm: look at the size of the pickle and the time to the first batch.

How to fix: call `unjam.share(dataset)` before the loader is created: it moves large arrays, lists
and dicts into shared memory, which is pickled as a reference; or keep the data in a file and map it
(`unjam.mapped(path)`); or use fork. unjam's own loader keeps arrays, and lists and dicts of plain
values, in memory once, whatever the number of workers.

Limits: tensors are sent through shared memory and are not counted.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import duration, size

RULE = Rule("UJ406", "large-pickle-per-worker", Severity.WARNING)
LARGE = 100_000_000


def detect(case: Case) -> Finding | None:
    """Find a worker argument whose pickle is large."""
    loader = case.loader
    large = next((c for c in case.arguments if c.nbytes >= LARGE), None)
    if not loader.num_workers or loader.start_method == "fork" or large is None:
        return None
    part = max(case.kinds("array", "objects"), key=lambda p: p.state.nbytes, default=None)
    as_is = case.as_is
    wait = as_is.batches[0].wait + (as_is.starts[0] if as_is.starts else 0) if as_is and as_is.batches else 0
    return Finding(
        RULE,
        f"the {large.name} ({size(large.nbytes)}) is pickled for each of {loader.num_workers} workers: "
        f"{size(large.nbytes * loader.num_workers)} in all",
        part.path if part else large.name,
        (
            f"the pickle of {large.name} has {size(large.nbytes)}",
            f"most of it is {part.path} ({size(part.state.nbytes)})" if part else "",
            *line_evidence("set at", part.place if part else None),
            f"time to the first batch: {duration(wait)}" if wait else "",
            "" if loader.persistent_workers else "repeated in every epoch",
        ),
        OBSERVED,
        f"call unjam.share(dataset) before the loader is created: {part.path if part else 'the data'} is then sent as a reference to one copy "
        "in shared memory; or map it from a file; or pass multiprocessing_context='fork'",
        part.place if part else loader.made_at,
    )
