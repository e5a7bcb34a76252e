"""The dataset works only with fork.

What happened: the workers are forked, so nothing is pickled and the program works here. But
something in the dataset, the collate function or `worker_init_fn` cannot be pickled: the same
program fails where workers are not forked.

Why: macOS and Windows start workers with spawn, and Linux defaults to forkserver from Python 3.14.
Pickle stores functions and classes by name, so it cannot store lambdas, local functions and open
handles.

How to confirm: with `multiprocessing_context="forkserver"` the loader fails when the iterator is
created.

How to fix: nothing has to change on this machine today. To be prepared, define the function at
module level, open handles on first use, or pass `multiprocessing_context="fork"` to make the choice
explicit. unjam's own loader sends such parts without fork.

Limits: this is a note, not a failure. A lambda in a dataset does not break forked workers.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.doctor.rules.uj101_cannot_pickle import cannot_be_pickled, help_for, pickle_evidence

RULE = Rule("UJ102", "fork-only", Severity.NOTE)


def detect(case: Case) -> Finding | None:
    """Find a worker argument that the other start methods could not pickle."""
    failed = cannot_be_pickled(case)
    if not case.forked or not failed or (case.as_is is not None and not case.as_is.fine):
        return None
    first = failed[0]
    return Finding(
        RULE,
        f"works only with fork: {first.path} cannot be pickled, so spawn and forkserver (Linux's default from Python 3.14) fail",
        first.path,
        pickle_evidence(failed),
        OBSERVED,
        f"no change is needed on Python {case.process_facts.python}; to prepare: {help_for(first.path, first.type_name)}",
        first.place,
    )
