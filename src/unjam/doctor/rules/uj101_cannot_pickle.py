"""The workers cannot start: the dataset or another worker argument cannot be pickled.

What happened: with the start methods spawn and forkserver, every worker receives a pickled copy of
the dataset, the collate function and `worker_init_fn`. One part of them cannot be pickled, so the
loader fails when its iterator is created.

Why: pickle writes functions and classes by name. A lambda, or a function or class defined inside a
function, has no name that another process could import. Locks, open files, generators, database
connections and sockets belong to one process.

How to confirm: the same loader starts with `multiprocessing_context="fork"`; pickling the named
attribute on its own fails.

How to fix: define the function or class at module level; open handles and create locks in the
worker, on first use; or leave them out of the pickle with `__getstate__`. unjam's own loader can
send lambdas and local classes.

Limits: objects that are pickled only when a batch is sent back are covered by UJ103.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case, WorkerArgument
from unjam.doctor.facts.source_places import function_at
from unjam.doctor.mechanisms.unsendable import CannotBeUnpickled
from unjam.doctor.queries.trials import basis_with_fork
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ101", "cannot-pickle", symptom="start")


def words(one: CannotBeUnpickled) -> Words:
    """Say that unpickling fails."""
    help_text = "make it work on an object without attributes: unpickling creates an empty object first"
    if "__getattr__" in function_at(one.place) or "Recursion" in one.failed:
        help_text = "in __getattr__, raise AttributeError for names that begin with two underscores and for the attribute that __getattr__ itself reads"
    return Words(f"{one.argument} cannot be unpickled in a worker ({one.start}): {one.failed}", help_text)


def detect(case: Case) -> Finding | None:
    """Find a worker argument that cannot be pickled under the start method in use."""
    if not case.loader.num_workers or case.loader.start_method == "fork":
        return None
    failed = cannot_be_pickled(case)
    if not failed:
        return None
    first = failed[0]
    return Finding(
        RULE,
        f"{first.path} cannot be pickled, so {case.loader.start_method} cannot start workers",
        first.path,
        pickle_evidence(failed),
        basis_with_fork(case.as_is),
        help_for(first.path, first.type_name),
        first.place,
    )


def cannot_be_pickled(case: Case) -> list[WorkerArgument]:
    """List the worker arguments that cannot be pickled."""
    # the doctor pickled in a fork, where an accelerator fails: ignore reasons that name it
    device = case.process_facts.accelerator or "no accelerator"
    return [argument for argument in case.arguments if argument.reason and device not in argument.reason]


def pickle_evidence(failed: list[WorkerArgument]) -> tuple[str, ...]:
    """Say why each of them cannot be pickled, and where the first is set."""
    place = failed[0].place
    return (
        *(f"{c.path} ({c.type_name}): {c.reason}" for c in failed),
        *line_evidence("set at", place),
    )


def help_for(path: str, type_name: str) -> str:
    """Return the help text for one part that cannot be pickled."""
    if "function" in type_name or type_name == "type" or "method" in type_name:
        return f"define {path} at module level (a def, a class with __call__, or functools.partial of one)"
    if type_name.startswith("multiprocessing"):
        return f"create {path} from the context that starts the workers: multiprocessing.get_context('forkserver')"
    return (
        f"create {path} in the worker: replace it with unjam.per_worker(function that creates it, its arguments), or store None "
        "in __init__ and create it on first use, or drop it in __getstate__"
    )
