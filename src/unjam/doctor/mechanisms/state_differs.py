"""State that differs: code reads a value that is different in a worker, or in another thread, than in the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.faults import WatchedFailure
from unjam.doctor.facts.program_facts import HASH, SETTING, ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls, stored
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, OBSERVED, Basis
from unjam.doctor.queries import failures
from unjam.doctor.queries.trials import basis_correct_with, wrong_samples
from unjam.units import count

# start of a process setting's name -> functions that change it
_SETTERS = {
    "the working folder": ("chdir",),
    HASH: ("hash",),
    "the locale": ("setlocale",),
    "the recursion limit": ("setrecursionlimit",),
    "torch.get_default_dtype": ("set_default_dtype", "set_default_tensor_type"),
    "torch.get_default_device": ("set_default_device",),
    "numpy.geterr": ("seterr",),
    "decimal.getcontext": ("setcontext", "getcontext"),
    "umask": ("umask",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDiffersInWorkers(Explanation):
    """A name or setting has a different value in the workers. setting: it is a process setting. wrong: samples that differ."""

    setting: bool
    loader: str
    start: str
    wrong: int
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAfterWorkersStart(Explanation):
    """The program sets a value that samples depend on after the workers of the epoch have started."""

    loader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextVariableUnset(Explanation):
    """A context variable (culprit) has no value in the thread that uses a loader, or in its workers."""

    thread: str
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Compare the values that loading reads in the program with those in the workers."""
    failure = failures.fatal_failure(known)
    if failure is not None and failure.context:
        yield from _context(known, failure)
    for loader in known.watched.loaders:
        other = _other(loader)
        case = known.case_of(loader)
        wrong = wrong_samples(case, case.compared) if case is not None else 0
        failed = failure if failure is not None and failure.loader in (loader.number, 0) else None
        others = [path for path in other if not path.startswith(SETTING)]
        settings = [path for path in other if path.startswith(SETTING)] if wrong or failed is not None else []
        paths = [*settings, *others] if settings and not others else others
        if paths:
            yield _explanation(known.watched, loader, case, paths, wrong, failed)
            return
    yield from _too_late(known)


def _too_late(known: Knowledge) -> Iterator[Explanation]:
    """Find a value that the program changes during its epochs, while the workers keep the value that they started with."""
    for loader in known.watched.loaders:
        changes = [
            (epoch, path)
            for epoch in loader.epochs
            for path in epoch.changed
            if path in loader.description.reads and path in loader.description.plain
            if epoch.worker_hashes
            and all(hashes.get(path) == epoch.hashes.get(path) for hashes in epoch.worker_hashes.values())
        ]
        path = next((one for _, one in changes), "")
        mine = [epoch for epoch, one in changes if one == path]
        if not path or loader.description.persistent or len(mine) < 2 or len(mine) < len(loader.complete_epochs) - 1:
            continue
        case = known.case_of(loader)
        place = _line(loader, case, path)
        yield SetAfterWorkersStart(
            culprit=path,
            place=place or loader.home or loader.made,
            because=(
                f"in {count(len(mine), 'epoch')} of {loader.name}, the program changed {path} after the workers had started",
                "the workers keep their copy of the old value, so samples are made with the value of an earlier epoch",
                f"set at {quoted(place)}" if place is not None else "",
            ),
            basis=OBSERVED,
            loader=loader.name,
            accounts_for=("differs", "repeats"),
        )
        return


def _explanation(
    watched: ProgramFacts,
    loader: WatchedLoader,
    case: Case | None,
    paths: list[str],
    wrong: int,
    failed: WatchedFailure | None,
) -> ValueDiffersInWorkers:
    path = paths[0]
    setting = path.startswith(SETTING)
    name = path.removeprefix(SETTING)
    place = _setter(watched, loader, name) if setting else _line(loader, case, name)
    start = case.loader.start_method if case is not None else ""
    in_init = start == "fork" and setting
    return ValueDiffersInWorkers(
        culprit=name,
        place=place or loader.home or loader.made or loader.place,
        because=(
            "workers are new interpreters, which start with the default"
            if setting and start != "fork"
            else f"functions that load samples use {name}",
            *((f"set at {quoted(place)}" if name != HASH else f"used at {quoted(place)}",) if place else ()),
            *(
                (f"{count(wrong, 'sample differs', 'samples differ')} between loading with and without workers",)
                if wrong
                else ()
            ),
            f"the program failed: {failures.failure_words(failed)}" if failed is not None else "",
            f"the same is true of {', '.join(paths[1:4])}" if paths[1:] else "",
        ),
        basis=_basis(case, start, wrong, in_init=in_init),
        case=case,
        setting=setting,
        loader=loader.name,
        start=start,
        wrong=wrong,
        failed=failures.failure_words(failed) if failed is not None else "",
        accounts_for=("differs", "raised", "lost") if wrong or failed is not None else (),
    )


def _basis(case: Case | None, start: str, wrong: int, *, in_init: bool) -> Basis:
    if case is None or case.compared is None:
        return OBSERVED
    if start in ("spawn", "forkserver"):
        base = case.compared if wrong else case.as_is
        return basis_correct_with(case, base.plan, base.plan.changed(start="fork")) if base is not None else AGREES
    if in_init:
        return basis_correct_with(case, case.compared.plan, case.compared.plan.changed(plain=True))
    return OBSERVED


def _setter(watched: ProgramFacts, loader: WatchedLoader, name: str) -> Place | None:
    """The line that changes a setting, as recorded or found in the source."""
    if name == "the working folder":
        entered = [one for one in watched.file_operations if one.kind == "entered"]
        inside = [one for one in entered if one.worker >= 0]
        return (inside or entered)[-1].place if entered else None
    calls = next((calls for begin, calls in _SETTERS.items() if name.startswith(begin)), ())
    return next((at for file in loader.source_files for at in attribute_calls(file, calls)), None)


def _line(loader: WatchedLoader, case: Case | None, path: str) -> Place | None:
    files = set(loader.source_files)
    if case is not None and case.loader.dataset_place is not None:
        files.add(case.loader.dataset_place.file)
    return next((at for file in sorted(files) for at in stored(file, path.rpartition(".")[2])), None)


def _other(loader: WatchedLoader) -> list[str]:
    """The paths that have one value in the program and another in all workers, at the start of the first epoch."""
    if not loader.epochs or not loader.workers:
        return []
    epoch = loader.epochs[0]
    found = []
    for path, value in epoch.hashes.items():
        # a handle that the worker reopens is not data
        hidden = value.startswith("object ") or path not in loader.description.reads
        if path.startswith("collate_fn") or path.endswith("(lru_cache)") or (path.startswith("dataset") and hidden):
            continue
        values = {hashes.get(path) for hashes in epoch.worker_hashes.values()}
        # an object that the worker creates for itself is not a different value
        made = value == "nothing" or any(str(one).startswith("object ") for one in values)
        differs = None not in values and value not in values and bool(values) and not made
        if differs and (len(values) == 1 or path.startswith(SETTING)):
            found.append(path)
    return found


def _context(known: Knowledge, failure: WatchedFailure) -> Iterator[Explanation]:
    loader = failures.loader_of(known.watched, failure)
    thread = failure.thread or (loader.description.thread if loader is not None else "")
    begun = loader.place if loader is not None else None
    yield ContextVariableUnset(
        culprit=failure.context,
        place=begun or failure.place,
        because=(
            failures.failure_words(failure),
            f"raised at {quoted(failure.place)}" if failure.place else "",
            f"the loader is used in thread {thread!r}, at {quoted(begun)}, and a new thread starts with an empty context"
            if thread
            else "a worker that is a new interpreter starts with an empty context",
        ),
        thread=thread,
        failed=failures.failure_words(failure),
        accounts_for=("raised",),
    )
