"""A process waits for a thread or process that has ended, or reads a mapped file that was truncated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.faults import EndedByException
from unjam.doctor.facts.scene import Process, Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.queries import failures, scenes
from unjam.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEnded(Explanation):
    """A thread or helper process ended with an exception, and the program waits for it. what: "thread" or "process"."""

    what: str
    name: str
    raised: str
    waits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFileShrunk(Explanation):
    """A file was truncated while it was mapped. died: a process was killed because it read past the new end."""

    path: str
    mapped: int
    size: int
    died: bool


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain a freeze by a thread of the waiting process, or a child of it, that ended with an exception."""
    found = list(_mappings(known)) or list(_truncated_mapping(known))
    yield from found
    watched = known.watched
    scene = watched.scene
    if watched.outcome != "frozen" or scene is None:
        return
    for one in reversed(watched.ended_by_exception):
        waiter = _waiter(scene, one)
        if waiter is None:
            continue
        raised = exception_line(one.type_name, one.message)[:200]
        place = waiter.thread.place
        yield PeerEnded(
            culprit=f"{one.kind} {one.name!r} at {one.place}" if one.place else f"{one.kind} {one.name!r}",
            place=one.place or place,
            because=(
                f"{one.kind} {one.name!r} ended with {raised}",
                f"raised at {quoted(one.place)}" if one.place else "",
                f"{waiter.name} waits at {quoted(place)}" if place else f"{waiter.name} waits",
                "nothing tells it that no answer will come",
            ),
            what=one.kind,
            name=one.name,
            raised=raised,
            waits=f"{waiter.name} waits at {place}" if place else waiter.name,
            accounts_for=("frozen", "raised"),
        )
        return


def _mappings(known: Knowledge) -> Iterator[Explanation]:
    """Find a file that was truncated while it was mapped."""
    for one in [one for process in known.watched.processes for one in process.shrunk_files]:
        died = known.watched.outcome == "failed"
        truncation = next(
            (
                operation
                for operation in reversed(known.watched.file_operations)
                if operation.kind == "truncated" and operation.path == one.path
            ),
            None,
        )
        if truncation is None and not one.was_whole:
            continue  # some libraries map more bytes than a file has
        one = replace(one, place=truncation.place if truncation is not None else one.place)  # noqa: PLW2901 - the line that truncated it says more
        yield MappedFileShrunk(
            culprit=f"{os.path.basename(one.path)}, opened again at {one.place}" if one.place else one.path,
            place=one.place,
            because=(
                f"{size(one.mapped)} of {one.path} are mapped, but the file now has only {size(one.size)}",
                f"last opened at {quoted(one.place)}" if one.place else "",
                "a process that reads past the new end is killed by SIGBUS; /dev/shm is not involved",
            ),
            basis=AGREES if died else OBSERVED,
            path=one.path,
            mapped=one.mapped,
            size=one.size,
            died=died,
            accounts_for=("died", "raised", "start") if died else (),
        )
        return


def _truncated_mapping(known: Knowledge) -> Iterator[Explanation]:
    """Find a worker that died after a file that it had mapped was truncated."""
    failure = failures.fatal_failure(known)
    if failure is None or "DataLoader worker" not in failure.message or failure.worker >= 0:
        return
    mapped = {path for process in known.watched.processes for path in process.mapped_files}
    for operation in reversed(known.watched.file_operations):
        if operation.kind == "truncated" and operation.path in mapped and operation.at <= failure.at:
            yield MappedFileShrunk(
                culprit=f"{os.path.basename(operation.path)}, opened again at {operation.place}",
                place=operation.place,
                because=(
                    failures.failure_words(failure),
                    f"workers had mapped {operation.path}, which was truncated at {quoted(operation.place)}",
                    "a process that reads past the new end is killed by SIGBUS; /dev/shm is not involved",
                ),
                path=operation.path,
                mapped=0,
                size=0,
                died=True,
                accounts_for=("died", "raised", "start"),
            )
            return


def _waiter(scene: Scene, one: EndedByException) -> Process | None:
    """The process that waits for the ended thread or process: the thread's own process, or the main process."""
    if one.kind == "thread":
        process = scene.find(one.pid)
        return process if process is not None and _waits(scene, process) else None
    main = next((main for main in scene.mains if main.pid != one.pid and _waits(scene, main)), None)
    return main if main is not None and main.activity.loader != "torch" else None


def _waits(scene: Scene, process: Process) -> bool:
    return bool(process.threads) and not process.ended and scenes.is_blocked(scene, process, process.thread)
