"""Cannot cross: what cannot be sent to a worker, or back from one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms import failures
from unjam.doctor.proof import AGREES


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCannotArrive(Explanation):
    """A batch was sent, and could not be rebuilt by the process that received it. owner: the class whose code failed."""

    owner: str
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain an exception of the program's own process that was raised while it unpickled a batch."""
    failure = failures.fatal(known)
    if failure is None or not failure.unpickled or failure.worker >= 0:
        return
    loader = failures.loader_of(known, failure)
    yield BatchCannotArrive(
        culprit=f"{failure.unpickled} at {failure.place}",
        place=failure.place,
        because=(
            failures.words(failure),
            f"raised while the main process rebuilt a batch from its pickle, at {quoted(failure.place)}",
            *((f"in {loader.name}",) if loader is not None else ()),
        ),
        basis=AGREES,
        owner=failure.unpickled,
        failed=failures.words(failure),
        accounts_for=("raised",),
    )
