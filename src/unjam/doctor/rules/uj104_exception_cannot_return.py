"""An exception cannot be sent back, so the loader waits for ever.

What happened: a sample raised an exception in a worker. torch sends the exception's class to the
main process, but this class cannot be pickled. The message is lost in a background thread of the
worker, and the main process waits for ever.

Why: pickle writes classes by name. A class made inside a function or at run time (some clients of
web services make theirs so) has no name that can be looked up.

How to confirm: with `num_workers=0` the exception is raised and shown.

How to fix: first repair the sample that fails. Then define the exception's class at the top of a
module, or catch it in the dataset and raise an exception whose class is. unjam's own loader sends
such exceptions.

Limits: the doctor knows only exceptions that were raised during its trials.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.trials import bad_samples, basis_without_samples, first_line
from unjam.doctor.mechanisms.unsendable import ExceptionChangesType
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ104", "exception-cannot-return", symptom="frozen")


NAMES = (ExceptionChangesType,)


def words(one: ExceptionChangesType) -> Words:
    """Say what the program gets in its place."""
    return Words(
        f"{one.type_name} raised in a worker arrives as RuntimeError, which the handler at {one.caught_at} does not catch",
        f"let {one.type_name}.__init__ work with one text: give its other arguments defaults, or define __reduce__",
    )


def detect(case: Case) -> Finding | None:
    """Find an exception that torch cannot send to the main process."""
    lost = [bad for trial in (case.as_is, case.alone) for bad in bad_samples(trial, "sample", "collate") if bad.crosses]
    if not lost or not case.loader.num_workers:
        return None
    first, as_is = lost[0], case.as_is
    hung = as_is is not None and as_is.outcome == "hung"
    where = f"sample {first.index}" if first.index else "the collate function"
    return Finding(
        RULE,
        f"{where} raises {first.type_name}, which cannot be sent back from a worker"
        + ("; the loader waits for ever" if hung else ""),
        f"{first.type_name} raised by {where}",
        (
            f"{first.type_name}: {first_line(first)}",
            *((f"raised at {quoted(first.place)}",) if first.place else ()),
            first.crosses,
            *(("with workers: every process waits; without: the exception is raised",) if hung else ()),
        ),
        basis_without_samples(case, [first.index]),
        f"repair {where}; and define {first.type_name} at the top of a module, so that failures can be seen",
        first.place,
    )
