"""A worker tries to start child processes.

What happened: a sample uses a DataLoader with workers, a `multiprocessing.Pool` or a `Process`.
torch's workers are daemons, and multiprocessing does not allow a daemon to have children.

Why: a daemon is killed when its parent ends, and its children would stay behind.

How to confirm: with `num_workers=0` the same samples load.

How to fix: use one level of processes: let the outer loader's workers do the work, with
`num_workers=0` in the inner loader. Threads (`ThreadPoolExecutor`) are allowed inside a worker.

Limits: processes started in other ways (`subprocess`, `os.fork`) are allowed and are not covered
here.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import bad_samples, basis_without_workers
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ207", "child-process-in-worker", symptom="differs")


def detect(case: Case) -> Finding | None:
    """Find multiprocessing's error that daemons cannot have children."""
    refused = [
        bad
        for trial in (case.as_is, case.compared)
        for bad in bad_samples(trial, "sample", "collate", "init", "made")
        if bad.type_name == "AssertionError" and "daemonic" in bad.message
    ]
    if not refused:
        return None
    first = refused[0]
    alone = case.alone is not None and not any("daemonic" in bad.message for bad in case.alone.bad)
    return Finding(
        RULE,
        f"the dataset starts processes inside a worker, which is not allowed (sample {first.index or '?'})",
        f"{first.place}" if first.place else "the dataset",
        (
            f"{first.type_name}: {first.message}",
            *line_evidence("at", first.place),
            "without workers the same sample loads" if alone else "",
        ),
        basis_without_workers(case),
        f"at {first.place}, use threads, num_workers=0 in an inner loader, or no pool: the outer loader already uses processes",
        first.place,
    )
