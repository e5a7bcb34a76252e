"""The dataset works under fork only.

What happened: the workers are forked, so nothing is pickled and all is well here. Something in the dataset, the collate function or
`worker_init_fn` could not be pickled, though: the same program fails where workers are not forked.

Why: macOS and Windows start workers with spawn, and Linux does not fork by default any more from Python 3.14 on (forkserver).
Pickle writes functions and classes by name, so lambdas, local functions and open handles cannot be written.

How to confirm: `multiprocessing_context="forkserver"` in the loader fails when the iterator is made.

How to fix: nothing needs to be done on this machine today. To be ready, name the function at the top of a module, open handles on
first use, or say `multiprocessing_context="fork"` so that the choice is yours. unjam's own loader ships such parts without fork.

Limits: this is a note, not a failure. A lambda in a dataset does not break forked workers.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.rules.judging import PROVEN, quoted
from unjam.doctor.rules.rule import Finding, Rule, Severity
from unjam.doctor.rules.uj101_cannot_pickle import help_for

RULE = Rule("UJ102", "fork-only", Severity.NOTE)


def detect(case: Case) -> Finding | None:
    """A crossing that would fail under the other start methods."""
    device = case.world.accelerator or "no accelerator"  # which a fork cannot use, so nothing of it was tried
    failed = [crossing for crossing in case.crossings if crossing.reason and device not in crossing.reason]
    if not case.forked or not failed:
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
        PROVEN,
        f"nothing to do on Python {case.world.python}; to be ready: {help_for(first.path, first.type_name)}",
        first.place,
    )


def broken(DataLoader: Any) -> None:
    """A lambda in the dataset, forked."""
    from unjam.doctor.rules.programs import Scaled

    for _ in DataLoader(Scaled(lambda x: 2 * x), batch_size=4, num_workers=1, multiprocessing_context="fork"):
        pass


def fixed(DataLoader: Any) -> None:
    """A function with a name."""
    from unjam.doctor.rules.programs import Scaled, double

    for _ in DataLoader(Scaled(double), batch_size=4, num_workers=1, multiprocessing_context="fork"):
        pass
