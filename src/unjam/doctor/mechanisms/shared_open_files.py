"""One description shared by several processes: a file, connection or database that was open before the workers were forked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.faults import Resource
from unjam.doctor.facts.program_facts import ProcessObservations
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, SUGGESTED, Basis, Toggle
from unjam.doctor.queries import failures
from unjam.doctor.queries.trials import basis_correct_with, wrong_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOpenFile(Explanation):
    """Workers share a file or connection that was opened before they were forked. kind: as in Resource."""

    kind: str
    workers: int
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a file or connection that was opened before the workers were forked and that several of them use."""
    yield from _of_a_failure(known)
    yield from _of_waits(known)


def _of_waits(known: Knowledge) -> Iterator[Explanation]:
    """Find a connection of the dataset on which several workers waited for answers."""
    for case in known.cases:
        if case.watched_loader is None or not case.forked:
            continue
        observations = known.watched.observations_of(case.watched_loader)
        for part in case.connections:
            target = part.state.target
            asked = [pid for process in known.watched.processes for pid in process.used_connections.get(target, ())]
            users = {one.pid for one in observations if one.targets.get(target)} | set(asked)
            if len(users & set(case.watched_loader.worker_pids)) > 1:
                yield _waited_on(case, part, len(users))
                break
        else:
            yield from _unnamed(case, observations)


def _unnamed(case: Case, observations: list[ProcessObservations]) -> Iterator[Explanation]:
    """Find a connection on which several workers waited and that is not reachable from the dataset."""
    users: dict[str, int] = {}
    for one in observations:
        for target in one.targets:
            if target.startswith("socket:"):
                users[target] = users.get(target, 0) + 1
    target = next((one for one, times in users.items() if times > 1), "")
    if not target or case.watched_loader is None:
        return
    line = next((one.place for process in observations for one in process.lines if one.waits == "socket"), None)
    place = case.process_facts.opened.get(target) or line or case.loader.dataset_place
    yield SharedOpenFile(
        culprit=f"the connection at {place}" if place is not None else "a connection",
        place=place,
        because=(
            f"{users[target]} workers of {case.watched_loader.name} waited on the same connection ({target})",
            f"at {quoted(line)}" if line is not None else "",
            "it was opened before the workers were forked, so each answer goes to the worker that happens to read first",
        ),
        basis=SUGGESTED if case.shared_locks else AGREES,
        case=case,
        kind="socket",
        workers=case.loader.num_workers,
        failed="a worker can receive the answer to another worker's request, or wait forever for its own",
        accounts_for=("differs", "raised", "frozen"),
    )


def _waited_on(case: Case, part: Part, users: int) -> SharedOpenFile:
    assert case.watched_loader is not None
    return SharedOpenFile(
        culprit=iterator_of(part.path),
        place=part.place,
        because=(
            f"samples of {users} workers of {case.watched_loader.name} use the same connection, {part.path}",
            f"connected at {quoted(part.place)}" if part.place else "",
            "it was opened before the workers were forked, so each answer goes to the worker that happens to read first",
        ),
        basis=_alone(case) or (SUGGESTED if case.shared_locks else AGREES),
        case=case,
        kind="socket",
        workers=case.loader.num_workers,
        failed="a worker can receive the answer to another worker's request",
        accounts_for=("differs", "raised"),
    )


def _alone(case: Case) -> Basis | None:
    """The basis if samples of a trial were wrong: a single worker shares the connection with no other worker."""
    trial = case.compared
    if trial is None or not wrong_samples(case, trial):
        return None
    return basis_correct_with(case, trial.plan, trial.plan.changed(workers=1))


def _of_a_failure(known: Knowledge) -> Iterator[Explanation]:
    """Explain a worker's failure by an inherited file or connection that the failing line can use."""
    failure = failures.fatal_failure(known)
    loader = failures.loader_of(known.watched, failure) if failure is not None else None
    if failure is None or loader is None or failure.worker < 0:
        return
    shared = next((one for one in failure.reach if _is_shared(one)), None)
    if shared is None or failure.errno in (2, 27, 28) or loader.workers < 2:
        return
    case = known.case_of(loader)
    part = _part(case, shared)
    place = shared.opened or (part.place if part is not None else None) or failure.place
    yield SharedOpenFile(
        culprit=iterator_of(part.path if part is not None else shared.path),
        place=place,
        because=(
            f"{failures.where_failed(failure)} fails: {failures.failure_words(failure)}",
            f"raised at {quoted(failure.place)}" if failure.place else "",
            f"that line reads from {shared.path} ({shared.target}), which was opened before the worker started",
            f"opened at {quoted(place)}" if place is not failure.place else "",
            f"{loader.workers} workers inherited it",
        ),
        basis=_basis(case, shared),
        case=case,
        kind=shared.kind,
        workers=loader.workers,
        failed=failures.failure_words(failure),
        accounts_for=("raised", "differs"),
    )


def _is_shared(one: Resource) -> bool:
    return one.inherited and not one.target.startswith(("/dev/", "anon_inode:", "/memfd:"))


def _part(case: Case | None, shared: Resource) -> Part | None:
    """The part of the dataset that is this file or connection."""
    return next((one for one in case.kinds("handle") if one.state.target == shared.target), None) if case else None


ITERATOR = (" (an iterator over a DataLoader)", "._worker_result_queue", "._index_queues")


def iterator_of(path: str) -> str:
    """A name for messages: for a queue of a loader's workers, the iterator that owns it."""
    words, *inside = ITERATOR
    owner = next((path.partition(one)[0] for one in inside if one in path), "")
    return f"{owner}{words}" if owner else path


def _basis(case: Case | None, shared: Resource) -> Basis:
    if case is None or case.as_is is None or case.as_is.fine or shared.kind != "file":
        return AGREES
    return Toggle(case.as_is.plan, (case.as_is.plan.changed(reopen=True),))
