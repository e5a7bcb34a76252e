"""The workers cannot import a class that is defined in a notebook.

What happened: with spawn and forkserver a worker looks up the dataset's class by name in the main
module. The main module here is a notebook or an interactive session: it has no file that the worker
could import, so the worker does not find the class.

Why: pickle stores an object's class only by name.

How to confirm: `multiprocessing_context="fork"` works; the worker's traceback says that it cannot
get the attribute from `__main__`.

How to fix: move the dataset and what it needs into a .py file and import it; or use
`multiprocessing_context="fork"` on Linux. unjam's own loader sends notebook classes.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import basis_with_fork
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ106", "main-cannot-be-imported", symptom="start")


def detect(case: Case) -> Finding | None:
    """Find a class of a main module without a file, under a start method that must import it."""
    loader, as_is = case.loader, case.as_is
    names = (
        [loader.dataset] if loader.main_class else [one for argument in case.arguments for one in argument.from_main]
    )
    if not loader.num_workers or loader.start_method == "fork" or not case.process_facts.interactive or not names:
        return None
    if as_is is not None and as_is.fine:
        return None
    missed = as_is is not None and "__main__" in as_is.output
    return Finding(
        RULE,
        f"{names[0]} is a class of the notebook, and {loader.start_method} cannot import it in a worker",
        names[0],
        (
            f"{names[0]} belongs to __main__, which has no file",
            "the workers could not find it in __main__" if missed else "",
        ),
        basis_with_fork(as_is),
        f"move {names[0]} into a .py file and import it, or pass multiprocessing_context='fork'",
        loader.dataset_place or loader.iterated_at,
    )
