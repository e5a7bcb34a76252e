"""Conflicting writes: several workers write one file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.faults import InheritedOutput, SampleOutput
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.queries import failures
from unjam.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralWriters(Explanation):
    """All workers write through the file that the program opened, each with a copy of its buffer."""

    path: str
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePathForAll(Explanation):
    """Samples of several workers write the same path and read it back. failed: the exception that this caused, if known."""

    path: str
    workers: int
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find files that several workers of the program write."""
    yield from _one_path(known)
    for process in known.watched.processes:
        by_path: dict[str, list[InheritedOutput]] = {}
        for one in process.inherited_outputs:
            by_path.setdefault(one.path, []).append(one)
        for path, found in by_path.items():
            writers = {one.worker for one in found if one.worker >= 0}
            if len(writers) > 1:
                yield _explanation(path, found, len(writers))
                return


def _explanation(path: str, found: list[InheritedOutput], writers: int) -> SeveralWriters:
    place = next((one.place for one in found if one.place is not None), None)
    name = os.path.basename(path)
    return SeveralWriters(
        culprit=name,
        place=place,
        because=(
            f"{path} grew while {count(writers, 'worker')} had it open",
            f"opened at {quoted(place)}" if place is not None else "",
            "each forked worker has its own copy of the buffer, but all share one position in the file",
            "anything a worker has not flushed when it ends is lost",
        ),
        path=path,
        workers=writers,
    )


def _one_path(known: Knowledge) -> Iterator[Explanation]:
    """Find a path that samples of several workers write and read back."""
    for process in known.watched.processes:
        by_path: dict[str, list[SampleOutput]] = {}
        for one in process.sample_outputs:
            by_path.setdefault(one.path, []).append(one)
        for path, found in by_path.items():
            failure = failures.fatal_failure(known)
            read = failure is not None and path in failure.files
            # several workers wrote and read it, or one wrote what a failing sample of another worker read
            pids = {one.pid for one in found if one.read}
            if read and failure is not None:
                pids = {one.pid for one in found} | {failure.pid}
            if len(pids) < 2:
                continue
            place = next((one.place for one in found if one.place is not None), None)
            loader = next((one for one in process.loaders if pids <= set(one.worker_pids)), None)
            case = known.case_of(loader)
            shared = case is not None and bool(case.shared_locks)
            if not read and (shared or any(one.locks for one in found)):
                continue  # a lock probably makes them take turns
            failed = failures.failure_words(failure) if failure is not None and failure.worker >= 0 else ""
            yield OnePathForAll(
                culprit=f"{os.path.basename(path)} at {place}" if place is not None else path,
                place=place,
                because=(
                    *((failed,) if failed else ()),
                    f"a sample of one worker wrote {path}, and a sample of another worker read it"
                    if read
                    else f"samples of {count(len(pids), 'worker')} write {path} and read it back",
                    f"written at {quoted(place)}" if place is not None else "",
                    "a worker can read the file while another is still writing it",
                ),
                basis=SUGGESTED if shared else AGREES,
                path=path,
                workers=len(pids),
                failed=failed,
                accounts_for=("raised", "differs") if failed else ("differs",),
            )
            return
