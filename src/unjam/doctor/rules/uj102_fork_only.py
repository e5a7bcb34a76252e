"""The dataset works under fork only.

What happened: the workers are forked, so nothing is pickled and the program works here. But
something in the dataset, the collate function or `worker_init_fn` cannot be pickled: the same
program fails where workers are not forked.

Why: macOS and Windows start workers with spawn, and from Python 3.14 on Linux uses forkserver by
default. Pickle writes functions and classes by name, so it cannot write lambdas, local functions
and open handles.

How to confirm: with `multiprocessing_context="forkserver"` the loader fails when the iterator is
made.

How to fix: nothing has to change on this machine today. To be ready, define the function at the top
of a module, open handles on first use, or pass `multiprocessing_context="fork"` to make the choice
explicit. unjam's own loader sends such parts without fork.

Limits: this is a note, not a failure. A lambda in a dataset does not break forked workers.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.doctor.rules.uj101_cannot_pickle import help_for

RULE = Rule("UJ102", "fork-only", Severity.NOTE)


def detect(case: Case) -> Finding | None:
    """Find a worker argument that the other start methods could not pickle."""
    # the doctor pickled in a fork, where an accelerator fails: ignore reasons that name it
    device = case.process_facts.accelerator or "no accelerator"
    failed = [crossing for crossing in case.arguments if crossing.reason and device not in crossing.reason]
    if not case.forked or not failed or (case.as_is is not None and not case.as_is.fine):
        return None
    first = failed[0]
    return Finding(
        RULE,
        f"fine under fork; {first.path} cannot be pickled, so spawn and forkserver (Linux's default from Python 3.14) fail",
        first.path,
        (
            *(f"{c.path} is a {c.type_name}: {c.reason}" for c in failed),
            *((f"set at {quoted(first.place)}",) if first.place else ()),
        ),
        OBSERVED,
        f"nothing to do on Python {case.process_facts.python}; to be ready: {help_for(first.path, first.type_name)}",
        first.place,
    )
