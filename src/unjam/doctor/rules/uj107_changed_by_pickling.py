"""Pickling changes the dataset that the workers receive.

What happened: the dataset can be pickled, but the workers' copy differs from the program's object.
Samples differ or fail with spawn or forkserver; with fork or without workers they do not.

Why: pickle copies attributes, not the program's state. It does not copy a global that is set under
the main guard, an environment variable read at import, an attribute that `__getstate__` leaves out,
or a class attribute changed at run time.

How to confirm: the same trial with `multiprocessing_context="fork"` gives the same samples as the
program without workers.

How to fix: keep everything that a sample depends on in the dataset's own attributes, set in
`__init__`; restore in `__setstate__` what `__getstate__` left out.

Limits: the doctor does not see a difference that no sample uses.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import basis_correct_with, differing, names, only_in_workers
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ107", "changed-by-pickling", symptom="differs")


def detect(case: Case) -> Finding | None:
    """Find samples that differ or fail under a start method that pickles, and not under fork."""
    loader, as_is, compared = case.loader, case.as_is, case.compared
    if not loader.num_workers or loader.start_method == "fork":
        return None
    if as_is is None or compared is None or case.alone is None:
        return None
    unsent = any(argument.reason or argument.unpickle_error for argument in case.arguments)
    if unsent or case.process_facts.interactive or "bootstrapping phase" in as_is.output:
        return None
    other, failure = differing(case, compared), only_in_workers(case)
    if not other and failure is None:
        return None
    forked = compared.plan.changed(start="fork")
    culprit = _missing(failure.message) if failure else f"dataset ({loader.dataset})"
    what = (
        f"{failure.type_name} in sample {failure.index}: {failure.message}"
        if failure
        else f"{len({s.index for s in other})} samples differ from those without workers, among them {names(s.index for s in other)}"
    )
    return Finding(
        RULE,
        f"{loader.dataset} is not the same in the workers: {loader.start_method} does not copy everything that a sample depends on",
        culprit,
        (
            what,
            *line_evidence("raised at", failure.place if failure else None),
        ),
        basis_correct_with(case, compared.plan, forked),
        "store what the sample depends on as an attribute, in the dataset's __init__"
        + (
            f" (not as the global {culprit})"
            if failure and "name '" in failure.message
            else "; see __getstate__ and module globals"
        ),
        (failure.place if failure else None) or loader.dataset_place,
    )


def _missing(message: str) -> str:
    """Return the quoted name from an exception message."""
    parts = message.split("'")
    return parts[-2] if "attribute" in message and len(parts) > 3 else parts[1] if len(parts) > 2 else message
