"""The dataset's code exits the worker process.

What happened: code that a sample runs called `exit()`, `sys.exit()` or `os._exit()`. In a worker
that ends the worker, not the program; torch then reports that the worker exited unexpectedly.

Why: usually a library or a command-line helper handles an error by exiting.

How to confirm: with `num_workers=0` the program itself exits at this sample.

How to fix: raise an exception instead of exiting; if a library exits, catch `SystemExit` around the
call and raise another exception.

Limits: `os._exit` and a library's C `exit()` leave no Python traceback; the sample is known, the
line only sometimes.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import bad_samples, basis_without_samples, dead_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ303", "exit-in-dataset", symptom="died")


def detect(case: Case) -> Finding | None:
    """Find a SystemExit from a sample, or a process that exited without a signal."""
    exits = [
        bad
        for trial in (case.as_is, case.alone)
        for bad in bad_samples(trial, "sample", "collate", "init", "made")
        if bad.type_name == "SystemExit"
    ]
    dead = [(trial, end) for trial, end in dead_processes(case) if not end.signal and end.index]
    if exits:
        first = exits[0]
        where, place = f"sample {first.index}" if first.index else f"the {first.stage} stage", first.place
        evidence: tuple[str, ...] = (
            f"{where} raises SystemExit({first.message})",
            *line_evidence("at", place),
        )
        basis = basis_without_samples(case, (bad.index for bad in exits))
    elif dead:
        _, end = dead[0]
        where, place = f"sample {end.index}", end.place
        evidence = (f"the process exited with code {end.code} while it loaded {where}, without an exception",)
        basis = basis_without_samples(case, (one.index for _, one in dead))
        if any(trial.plan.workers == 0 for trial, _ in dead):
            evidence += ("without workers the program itself exits",)
    else:
        return None
    return Finding(
        RULE,
        f"{where} ends its worker: the dataset's code exits the process",
        f"{where} at {place}" if place else where,
        evidence,
        basis,
        f"raise an exception instead of exiting {f'at {place}' if place else f'in {case.loader.dataset}'}",
        place or case.loader.dataset_place,
    )
