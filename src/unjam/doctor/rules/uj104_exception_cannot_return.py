"""An exception cannot be sent from a worker, so the loader hangs.

What happened: a sample raised an exception in a worker. torch sends the exception's class to the
main process, but this class cannot be pickled. The message is lost in a background thread of the
worker, and the main process waits forever.

Why: pickle stores classes by name. A class created inside a function or at run time (as some web
service clients do) has no name that can be looked up.

How to confirm: with `num_workers=0` the exception is raised and shown.

How to fix: first fix the sample that fails. Then define the exception class at module level, or
catch the exception in the dataset and raise one whose class is defined there. unjam's own loader
sends such exceptions.

Limits: the doctor knows only exceptions that were raised during its trials.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.mechanisms.unsendable import ExceptionChangesType
from unjam.doctor.queries.trials import bad_samples, basis_without_samples, raised_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ104", "exception-cannot-return", symptom="frozen")


def words(one: ExceptionChangesType) -> Words:
    """Say which exception the program gets instead."""
    return Words(
        f"{one.type_name} raised in a worker arrives as RuntimeError, which the handler at {one.caught_at} does not catch",
        f"let {one.type_name}.__init__ accept a message as its only argument: give the other arguments defaults, or define __reduce__",
    )


def detect(case: Case) -> Finding | None:
    """Find an exception that torch cannot send to the main process."""
    lost = [
        bad for trial in (case.as_is, case.alone) for bad in bad_samples(trial, "sample", "collate") if bad.pickle_error
    ]
    if not lost or not case.loader.num_workers:
        return None
    first, as_is = lost[0], case.as_is
    hung = as_is is not None and as_is.outcome == "hung"
    where = f"sample {first.index}" if first.index else "the collate function"
    return Finding(
        RULE,
        f"{where} raises {first.type_name}, which cannot be sent back from a worker"
        + ("; the loader waits forever" if hung else ""),
        f"{first.type_name} raised by {where}",
        (
            *raised_words(first),
            first.pickle_error,
            "with workers: every process waits; without: the exception is raised" if hung else "",
        ),
        basis_without_samples(case, [first.index]),
        f"fix {where}, and define {first.type_name} at module level so that its failures are shown",
        first.place,
    )
