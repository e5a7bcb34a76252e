"""The program has no main guard, so every worker runs it again.

What happened: with spawn and forkserver a worker first imports the program's main file. The loop
over the loader is at the top level of that file, so the worker runs the same loop and tries to
start its own workers, which multiprocessing refuses.

Why: when another process imports the file, it skips only the code under `if __name__ ==
"__main__":`.

How to confirm: `multiprocessing_context="fork"` works; the worker's traceback mentions the
bootstrapping phase.

How to fix: put everything that is not a definition under the guard, preferably in a function
`main()` that is called there. unjam's own loader needs no guard.

Limits: a program that is started with `python -c` or from a notebook has no file to import (UJ106).
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.queries.trials import basis_with_fork
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ105", "no-main-guard", symptom="start")


def detect(case: Case) -> Finding | None:
    """Find a loop without a main guard under a start method that imports the main file."""
    loader, as_is = case.loader, case.as_is
    if not loader.num_workers or loader.start_method == "fork":
        return None
    if case.reading.guarded or case.process_facts.interactive or (as_is is not None and as_is.fine):
        return None
    stopped = as_is is not None and "bootstrapping phase" in as_is.output + (as_is.raised.trace if as_is.raised else "")
    return Finding(
        RULE,
        f"the loop over the loader has no main guard, and {loader.start_method} imports the file again in every worker",
        f"{loader.iterated_at}: no if __name__ == '__main__'",
        (
            f"the loop is at the top level of the file: {quoted(loader.iterated_at)}",
            "the worker stopped in multiprocessing's bootstrapping phase" if stopped else "",
        ),
        basis_with_fork(as_is),
        f"move the code from {loader.made_at or loader.iterated_at} onwards into main(), and call it under the guard",
        loader.iterated_at,
        '+if __name__ == "__main__":\n+    main()',
    )
