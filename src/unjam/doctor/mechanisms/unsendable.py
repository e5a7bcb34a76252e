"""Objects that cannot be sent to a worker, or from a worker to the main process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import class_line, handlers_of
from unjam.doctor.facts.trial import Place
from unjam.doctor.queries import failures
from unjam.doctor.queries.trials import basis_with_fork


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCannotBeUnpickled(Explanation):
    """The process that received a batch could not unpickle it. owner: the class whose code failed."""

    owner: str
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotBeUnpickled(Explanation):
    """An argument of the workers can be pickled but not unpickled. argument: "dataset", "collate_fn" or "worker_init_fn"."""

    argument: str
    failed: str
    start: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain what cannot be unpickled: in the workers, or a batch in the main process."""
    for case in known.cases:
        argument = next((one for one in case.arguments if one.unpickle_error), None)
        as_is = case.as_is
        if argument is not None and as_is is not None and not as_is.fine and case.loader.start_method != "fork":
            said = f"{argument.name} can be pickled, but unpickling it raises {argument.unpickle_error[:200]}"
            place, home = argument.unpickle_error_place, case.loader.dataset_place
            yield _cannot_be_unpickled(case, argument.name, place, home, said, argument.unpickle_error)
            return
    yield from _worker_that_never_began(known)
    yield from _lost(known)
    yield from _exception(known)
    yield from _batch(known)


BEGINS = ("multiprocessing/spawn.py", "pickle.load(")


def _worker_that_never_began(known: Knowledge) -> Iterator[Explanation]:
    """Find a worker that ended while it unpickled its arguments."""
    ended = next(
        (one for one in known.watched.failures if one.stage == "end" and all(mark in one.trace for mark in BEGINS)),
        None,
    )
    loader = next((one for one in known.watched.loaders if one.workers), None)
    if ended is None or loader is None or known.watched.outcome not in ("failed", "frozen"):
        return
    case = known.case_of(loader)
    if case is not None and case.process_facts.interactive and "__main__" in ended.message:
        return  # a notebook's class, which the worker did not find: that is UJ106
    words = failures.failure_words(ended)
    said = f"a worker raised {words} while it unpickled its arguments"
    yield _cannot_be_unpickled(case, "dataset", ended.place, loader.home, said, words)


def _cannot_be_unpickled(
    case: Case | None, argument: str, place: Place | None, home: Place | None, said: str, failed: str
) -> Explanation:
    start = case.loader.start_method if case is not None else "spawn"
    return CannotBeUnpickled(
        culprit=f"{argument}, at {quoted(place)}" if place is not None else argument,
        place=place or home,
        because=(
            said,
            f"raised at {quoted(place)}" if place is not None else "",
            f"workers started with {start} unpickle it first, so they end before their first sample",
        ),
        basis=basis_with_fork(case.as_is if case is not None else None),
        case=case,
        argument=argument,
        failed=failed[:160],
        start=start,
        accounts_for=("start", "died", "raised", "frozen"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionChangesType(Explanation):
    """torch could not recreate a worker's exception in the main process, and raised a RuntimeError that the program does not catch."""

    type_name: str
    caught_at: Place


def _exception(known: Knowledge) -> Iterator[Explanation]:
    """Explain a RuntimeError that replaced an exception that the program would have caught."""
    end = next((one for one in known.watched.failures if one.stage == "end"), None)
    first = next(
        (one for one in known.watched.failures if one.worker >= 0 and one.stage in ("sample", "collate")), None
    )
    if end is None or first is None or known.watched.outcome != "failed" or end.type_name == first.type_name:
        return
    name = first.type_name.rpartition(".")[2]
    if f"Caught {name} in DataLoader worker" not in end.message:
        return
    files = list(dict.fromkeys(place.file for one in known.watched.loaders for place in (one.place, one.made) if place))
    caught = next((at for file in files for at in handlers_of(file, name)), None)
    place = next((at for file in files if (at := class_line(file, name)) is not None), None)
    if caught is None:
        return
    yield ExceptionChangesType(
        culprit=f"{name}.__init__" + (f" at {place}" if place is not None else ""),
        place=place or first.place,
        because=(
            f"{failures.where_failed(first)} raises {failures.failure_words(first)}",
            f"torch recreates it in the main process from its message alone, which {name}.__init__ does not accept",
            f"torch raises a RuntimeError instead, which {quoted(caught)} does not catch",
        ),
        type_name=name,
        caught_at=caught,
        accounts_for=("raised",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLost(Explanation):
    """The feeder thread of a worker's queue could not pickle a batch: the batch is lost, and no process learns of it."""

    failed: str


def _lost(known: Knowledge) -> Iterator[Explanation]:
    lost = [one for process in known.watched.processes for one in process.lost_batches]
    # tensors and arrays can be pickled: for them, sending the memory failed
    for one in [one for one in lost if not one.kind.startswith(("torch.", "numpy."))]:
        failed = exception_line(one.type_name, one.message)[:200]
        loader = next((loader for loader in known.watched.loaders if loader.workers), None)
        part = f"{one.path} ({one.kind})" if one.path else "the batch"
        yield BatchLost(
            culprit=part,
            place=one.place or (loader.home if loader is not None else None),
            because=(
                f"pickling {part} in worker {one.worker} raised {failed}",
                f"raised at {quoted(one.place)}" if one.place else "",
                "the queue's feeder thread pickles batches: this one was lost there, and the main process still waits for it",
            ),
            failed=failed,
            accounts_for=("frozen", "raised"),
        )
        return


def _batch(known: Knowledge) -> Iterator[Explanation]:
    """Explain an exception that the main process raised while it unpickled a batch."""
    failure = failures.fatal_failure(known)
    if failure is None or not failure.unpickled or failure.worker >= 0:
        return
    loader = failures.loader_of(known.watched, failure)
    yield BatchCannotBeUnpickled(
        culprit=f"{failure.unpickled} at {failure.place}",
        place=failure.place,
        because=(
            failures.failure_words(failure),
            f"raised while the main process unpickled a batch, at {quoted(failure.place)}",
            f"the batch came from {loader.name}" if loader is not None else "",
        ),
        owner=failure.unpickled,
        failed=failures.failure_words(failure),
        accounts_for=("raised",),
    )
