"""Locks, transactions and lock files that a sample acquired and did not release, and that other processes wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.faults import UnreleasedResource
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.source_places import attribute_calls, called_on_attribute
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, Basis, Toggle
from unjam.doctor.queries import failures, scenes
from unjam.doctor.queries.trials import names
from unjam.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverReleased(Explanation):
    """A lock, transaction or lock file that samples did not release. place: the line that acquires it."""

    kind: str
    index: str
    failed: str  # the exception that this caused in another process; "" for a freeze


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFileNotRemoved(Explanation):
    """A process waits until a lock file is removed, but the process that created the file has ended.

    at_exit: where the program registers a function with atexit, which a forked worker never runs.
    """

    path: str
    waiter: str
    at_exit: Place | None


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain a freeze, or a failure of another process, by what an earlier sample did not release."""
    watched = known.watched
    failure = failures.fatal_failure(known)
    if watched.outcome == "frozen" and watched.scene is not None:
        yield from _lock_files(watched, watched.scene)
        waiting = scenes.blocked_processes(watched.scene)
        stuck = [one.process.pid for one in waiting]
        for first in _firsts(watched.unreleased):
            if not _is_waited_for(first, waiting):
                continue
            yield _explanation(known, first, stuck, "")
            return
    elif failure is not None and failure.errno == 0:
        others = [
            one
            for one in watched.unreleased
            if one.kind == "transaction" and one.pid != failure.pid and one.at < failure.at
        ]
        if others and "sqlite3" in failure.trace and failure.worker >= 0:
            yield _explanation(known, others[-1], [], failures.failure_words(failure))


def _lock_files(watched: ProgramFacts, scene: Scene) -> Iterator[Explanation]:
    """Find a process that polls for a lock file that nothing will remove, in the code that also creates such files."""
    alive = {one.pid for one in scene.processes if not one.ended}
    for left in [one for process in watched.processes for one in process.lock_files if one.pid not in alive]:
        for process in scene.processes:
            thread = process.thread if process.threads else None
            if thread is None or left.place is None or thread.waiting.kind != "sleep":
                continue
            if left.place.file not in {frame.file for frame in thread.frames}:
                continue
            worker = any(left.pid in loader.worker_pids for loader in watched.loaders)
            registered = attribute_calls(left.place.file, ("register",)) if worker else ()
            at_exit = next((at for at in registered if "atexit" in quoted(at)), None)
            yield LockFileNotRemoved(
                culprit=f"{os.path.basename(left.path)}, created at {left.place}",
                place=left.place,
                at_exit=at_exit,
                because=(
                    f"process {left.pid} created {left.path} at {quoted(left.place)} and has ended",
                    "the file still exists, and no process is left to remove it",
                    *(
                        (f"that process was a worker, and a forked worker never runs {quoted(at_exit)}",)
                        if at_exit is not None
                        else ()
                    ),
                    f"{process.name} checks for the file repeatedly at {quoted(thread.place)}",
                ),
                path=left.path,
                waiter=process.name,
                accounts_for=("frozen",),
            )
            return


_EXECUTE = ("execute", "executemany", "executescript")
_CHANGES = ("insert", "update", "delete", "replace", "begin")


def _changes(place: Place) -> bool:
    """Whether a statement begins a transaction that changes a database."""
    text = line_of(place).lower()
    return any(f"{quote}{word}" in text for quote in ("'", '"') for word in _CHANGES)


def _firsts(left: list[UnreleasedResource]) -> list[UnreleasedResource]:
    """The first time that each resource was not released; locks before files."""
    found: dict[tuple[str, str], UnreleasedResource] = {}
    for one in left:
        found.setdefault((one.kind, one.path if one.kind != "file" else str(one.place)), one)
    return sorted(found.values(), key=lambda one: one.kind == "file")


def _is_waited_for(left: UnreleasedResource, waiting: list[scenes.BlockedProcess]) -> bool:
    name = left.path.rpartition(".")[2]
    for one in waiting:
        line = scenes.line_text(one)
        if left.kind == "transaction":
            # SQLite retries until the other process has committed
            in_sqlite = any("sqlite" in library for library in one.thread.libraries) or "execute" in line
            if one.process.pid != left.pid and one.thread.waiting.kind == "sleep" and in_sqlite:
                return True
        elif left.kind == "file":
            files = {frame.file for frame in one.thread.frames}
            if one.thread.waiting.kind == "sleep" and left.place is not None and left.place.file in files:
                return True
        elif name in line or any(name in text for text in scenes.lock_names(one)):
            return True
    return False


def _explanation(known: Knowledge, left: UnreleasedResource, stuck: list[int], failed: str) -> NeverReleased:
    same = [one for one in known.watched.unreleased if (one.kind, one.path) == (left.kind, left.path)]
    loader = next((one for one in known.watched.loaders if one.workers or left.worker < 0), None)
    case = known.case_of(loader)
    files = loader.description.files if loader is not None else ()
    taken = left.place or called_on_attribute(files, left.path.rpartition(".")[2], ("acquire",))
    if taken is None and left.kind == "transaction":
        calls = [at for file in files for at in attribute_calls(file, _EXECUTE) if _changes(at)]
        home = loader.home if loader is not None else None
        # the code that creates the database precedes the class that reads it
        taken = next((at for at in calls if home is None or at.file != home.file or at.line > home.line), None)
    ways = f"raised {left.raised}" if left.raised else "returned"
    who = f"worker {left.worker}" if left.worker >= 0 else "the program"
    indices = names(failures.short_index(one.index) for one in same)
    return NeverReleased(
        culprit=left.path,
        place=taken,
        because=(
            f"sample {failures.short_index(left.index)} in {who} acquired {left.path} and {ways} without releasing it",
            f"acquired at {quoted(taken)}" if taken is not None else "",
            f"{count(len(same), 'sample')} did this: {indices}" if len(same) > 1 else "",
            f"{count(len(stuck), 'process waits', 'processes wait')} for it now" if stuck else "",
            *((failed,) if failed else ()),
        ),
        basis=_basis(case, left),
        case=case,
        kind=left.kind,
        index=failures.short_index(left.index),
        failed=failed,
        accounts_for=("raised",) if failed else ("frozen",),
    )


def _basis(case: Case | None, left: UnreleasedResource) -> Basis:
    if case is None or left.kind in ("file", "transaction"):
        return AGREES
    base = case.as_is or case.first_alone
    if base is None or base.fine:
        return AGREES
    return Toggle(base.plan, (base.plan.changed(release=(left.path,)),))
