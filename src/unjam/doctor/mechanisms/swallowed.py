"""Swallowed failures: a handler catches an exception and retries without end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.queries import failures


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesWithoutEnd(Explanation):
    """A sample fails, its handler loads another instead, and that fails too. root: the exception that is caught."""

    root: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain a RecursionError by the exception that was caught first."""
    failure = failures.fatal_failure(known)
    if failure is None or not failure.root:
        return
    place = failure.root_at or failure.place
    yield RetriesWithoutEnd(
        culprit=f"{line_of(place) or 'the sample'} at {place}",
        place=place,
        because=(
            f"{failures.where_failed(failure)} ended with {failures.failure_words(failure)}",
            f"the first exception was {failure.root}" + (f", raised at {quoted(place)}" if place is not None else ""),
            "the handler loaded another sample instead each time, and each of them raised again",
        ),
        root=failure.root,
        accounts_for=("raised",),
    )
