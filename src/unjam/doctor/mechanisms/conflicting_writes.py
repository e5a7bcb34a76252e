"""Conflicting writes: several workers write one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.watched import WrittenFile
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import AGREES


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralWriters(Explanation):
    """All workers write through the file that the program opened, each with a copy of its buffer."""

    path: str
    workers: int


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find files that several workers of the program write."""
    for process in known.watched.processes:
        by_path: dict[str, list[WrittenFile]] = {}
        for one in process.written:
            by_path.setdefault(one.path, []).append(one)
        for path, found in by_path.items():
            writers = {one.worker for one in found if one.worker >= 0}
            if len(writers) > 1:
                yield _explanation(path, found, len(writers))
                return


def _explanation(path: str, found: list[WrittenFile], writers: int) -> SeveralWriters:
    place = next((one.place for one in found if one.place is not None), None)
    name = os.path.basename(path)
    return SeveralWriters(
        culprit=name,
        place=place,
        because=(
            f"{path} grew while {count(writers, 'worker')} had it open",
            *((f"opened at {quoted(place)}",) if place is not None else ()),
            "each forked worker has its own copy of the buffer, and one position in the file with all others",
            "what a worker has not flushed when it ends is lost",
        ),
        basis=AGREES,
        path=path,
        workers=writers,
        accounts_for=("written",),
    )
