"""Time: how long the training waited for data, and on which lines loading spends its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import leaves_loop_early, line_of, quoted
from unjam.doctor.facts.source_places import method_line
from unjam.doctor.facts.trial import Place, Trial
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.loaders import stream_split
from unjam.units import count, duration

# to report, and to warn: for how many seconds training waited, without the first batch of each epoch, and their share
SECONDS, SHARE = 2.0, 0.35
WARN_SECONDS, WARN_SHARE = 6.0, 0.55
ALL = 0.95
CHEAP = 0.002  # seconds: if samples are this cheap, most time is spent on batches and processes
HOT = 0.6  # if a line has this share of the loading time, warn earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWaits(Explanation):
    """waited, total: seconds. hot: share of the loading time on the hottest line."""

    loader: str
    waited: float
    total: float
    workers: int
    line: Place | None
    hot: float
    minor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersTakeTurns(Explanation):
    """Workers wait for the same lock much of the time. lock: its name in the program."""

    lock: str
    workers: int
    share: float
    loader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedToBeSkipped(Explanation):
    """The training loads the first batches of an epoch without using them, to resume where it stopped."""

    loader: str
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryWorkerDoesAll(Explanation):
    """Each worker of a stream makes the samples of all workers. alone, each: CPU seconds per sample."""

    loader: str
    workers: int
    alone: float
    each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerTakesTime(Explanation):
    """The training process spends much time in the sampler. seconds: in all epochs."""

    sampler: str
    loader: str
    seconds: float
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersWithoutWork(Explanation):
    """Some workers of a stream deliver all samples, and the others none."""

    loader: str
    workers: int
    busy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedByOneProcess(Explanation):
    """Samples are read through a manager's proxy, and the manager's single process serves every access. path: the proxy."""

    path: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MainUnpickles(Explanation):
    """The training process itself computes while it waits for a batch. share: of its waits."""

    loader: str
    share: float


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find the loader that training waited for most."""
    watched = known.watched
    if watched.outcome in ("failed", "frozen"):
        return
    yield from _skipped(watched)
    for one in known.cases:
        yield from _all_by_each(one)
    for loader in watched.loaders:
        yield from _sampler(watched, loader)
    found = [one for one in watched.loaders if _waited(one) >= SECONDS and _waited(one) >= SHARE * _total(one)]
    worst = max(found, key=_waited, default=None)
    if worst is not None:
        case = known.case_of(worst)
        yield from _turns(watched, worst, case)
        yield from _unpickling(watched, worst)
        yield from _idle_workers(worst, case)
        yield from _proxy(watched, worst, case)
        yield _explanation(watched, worst, case)


def _waited(loader: WatchedLoader) -> float:
    return sum(epoch.waited for epoch in loader.epochs)


def _total(loader: WatchedLoader) -> float:
    return sum(epoch.seconds for epoch in loader.epochs)


def _waited_words(loader: WatchedLoader) -> str:
    return f"training waited {duration(_waited(loader))} of {duration(_total(loader))} with {loader.name}"


def _explanation(watched: ProgramFacts, loader: WatchedLoader, case: Case | None) -> TrainingWaits:
    waited, total = _waited(loader), _total(loader)
    loaded, loading = sum(e.loaded for e in loader.epochs), sum(e.loading for e in loader.epochs)
    lines = _seen_lines(watched, loader) or _lines(case)
    place, hot = lines[0] if lines else (None, 0.0)
    each = loading / loaded if loaded else 0.0
    return TrainingWaits(
        culprit=f"{place}" if place is not None else loader.name,
        place=place or loader.home or loader.made or loader.place,
        because=(
            f"{_waited_words(loader)} ({waited / total:.0%}), not counting first batches",
            f"a sample takes {duration(each)} to load"
            + (f", in {count(loader.workers, 'worker')}" if loader.workers else ""),
            *(f"{share:.0%} of the loading time: {quoted(at)}" for at, share in lines[:3] if share >= 0.05),
            f"if loading took no time, the same epochs would take {duration(total - waited)}",
        ),
        basis=OBSERVED,
        case=case,
        loader=loader.name,
        waited=waited,
        total=total,
        workers=loader.workers,
        line=place,
        hot=hot,
        # a loop that does not use its batches waits all the time
        minor=(not loader.trains and waited > ALL * total)
        or waited < WARN_SECONDS
        or each < CHEAP
        or waited < (SHARE if hot > HOT else WARN_SHARE) * total,
        accounts_for=("slow",),
    )


FEWEST_SKIPPED = 16


def _skipped(watched: ProgramFacts) -> Iterator[Explanation]:
    """Find an epoch whose first batches were skipped by a `continue` in its loop."""
    by_line: dict[tuple[int, Place], list[WatchedLoader]] = {}
    for loader in watched.loaders:
        if loader.place is not None:
            by_line.setdefault((loader.pid, loader.place), []).append(loader)
    for (_, line), loaders in by_line.items():
        epochs = sorted((epoch for loader in loaders for epoch in loader.epochs), key=lambda one: one.began)
        first = next((at for at, epoch in enumerate(epochs) if epoch.steps), None)
        place = leaves_loop_early(line)
        if first is None or place is None:
            continue
        stepped = epochs[first]
        skipped = sum(epoch.batches for epoch in epochs[:first]) + stepped.unused
        # one step for several batches is gradient accumulation
        usual = max(1.0, (stepped.batches - stepped.unused) / stepped.steps)
        if skipped < max(FEWEST_SKIPPED, 4 * usual):
            continue
        yield LoadedToBeSkipped(
            culprit=f"{line_of(place)} at {place}",
            place=place,
            because=(
                f"the first {skipped:,} batches of {loaders[0].name} were loaded, but no training step used them",
                f"the loop skips to the next batch at {quoted(place)}",
            ),
            basis=OBSERVED,
            loader=loaders[0].name,
            skipped=skipped,
            accounts_for=("slow",),
        )
        return


TURNS, FEWEST_BUSY = 0.25, 40  # share of the observations of busy workers, and the fewest of these


def _turns(watched: ProgramFacts, loader: WatchedLoader, case: Case | None) -> Iterator[Explanation]:
    """Find a line at which several workers wait for a lock that they share."""
    observations = watched.observations_of(loader)
    waiting = [
        (one.pid, line) for one in observations for line in one.lines if line.stage == "sample" and line.waits in LOCKS
    ]
    busy = sum(one.times - one.waits.get("pipe", 0) for one in observations)
    share = sum(one.waits.get(kind, 0) for one in observations for kind in LOCKS) / busy if busy else 0.0
    lines = Counter(line.place for _, line in waiting for _ in range(line.times))
    if share < TURNS or busy < FEWEST_BUSY or lines.total() < 2:
        return
    place = lines.most_common(1)[0][0]
    locks = case.shared_locks if case else []
    lock = next((part for part in locks if part.path.rpartition(".")[2] in quoted(place)), None)
    files = any(one.waits.get("file lock") for one in observations)
    if lock is None and not files:
        return
    name = lock.path if lock is not None else "a lock on a file"
    yield WorkersTakeTurns(
        culprit=f"{name} at {place}",
        place=place,
        because=(
            f"in {share:.0%} of the observations, {count(len(observations), 'worker')} waited for a lock, at {quoted(place)}",
            f"created at {quoted(lock.place)}" if lock is not None and lock.place is not None else "",
            _waited_words(loader),
        ),
        case=case,
        lock=name,
        workers=loader.workers,
        share=share,
        loader=loader.name,
        accounts_for=("slow",),
    )


LONG_SAMPLING, SAMPLING_SHARE = 1.5, 0.2


def _sampler(watched: ProgramFacts, loader: WatchedLoader) -> Iterator[Explanation]:
    """Find a sampler that takes a large part of the time of its epochs."""
    seconds = sum(epoch.sampling for epoch in loader.epochs)
    if loader.iterable or seconds < max(LONG_SAMPLING, SAMPLING_SHARE * _total(loader)):
        return
    lines: Counter[Place] = Counter()
    for process in watched.observations:
        for one in process.lines if process.pid == loader.pid else ():
            if one.stage == "sampler":
                lines[one.place] += one.times
    name, file = loader.description.batch_sampler or loader.description.sampler, loader.description.sampler_file
    hot = lines.most_common(1)[0][0] if lines else None
    place = hot or method_line(file, name, "__iter__") or loader.made
    epochs = len(loader.epochs)
    yield SamplerTakesTime(
        culprit=f"{name}.__iter__" + (f" at {place}" if place is not None else ""),
        place=place,
        because=(
            f"{name} took {duration(seconds)} of {duration(_total(loader))} with {loader.name}, in {count(epochs, 'epoch')}",
            "the sampler runs in the training process, and workers are idle while they have no indices",
            f"it was observed most often at {quoted(hot)}" if hot is not None else "",
        ),
        basis=OBSERVED,
        sampler=name,
        loader=loader.name,
        seconds=seconds,
        epochs=epochs,
        accounts_for=("slow",),
    )


UNPICKLES, FEWEST_STACKS = 0.4, 5


def _unpickling(watched: ProgramFacts, loader: WatchedLoader) -> Iterator[Explanation]:
    """Find a training process that computes inside the loader's `next`."""
    observations = next((one for one in watched.observations if one.pid == loader.pid), None)
    computing = [line for line in observations.lines if line.waits == "nothing"] if observations is not None else []
    stacks = sum(one.times for one in computing)
    inside = sum(one.times for one in computing if one.stage == "waits")
    if observations is None or not loader.workers or stacks < FEWEST_STACKS:
        return
    # stacks are read only while it computes; the observations without a stack show how often it does
    seconds = _total(loader) * observations.waits.get("nothing", 0) / observations.times * inside / stacks
    share = min(1.0, seconds / _waited(loader))
    if share < UNPICKLES:
        return
    place = loader.place or loader.made
    yield MainUnpickles(
        culprit=f"the batches of {loader.name}",
        place=loader.home or place,
        because=(
            f"the training process computed in {observations.waits.get('nothing', 0)} of {observations.times} observations, and {inside} of {stacks} "
            "of its stacks were inside the loader" + (f", at {quoted(place)}" if place is not None else ""),
            _waited_words(loader),
        ),
        loader=loader.name,
        share=share,
        accounts_for=("slow",),
    )


def _idle_workers(loader: WatchedLoader, case: Case | None) -> Iterator[Explanation]:
    """Find a stream whose samples all come from a part of its workers."""
    trial = case.compared if case is not None else None
    if (
        case is None
        or trial is None
        or not loader.iterable
        or loader.workers < 2
        or len(trial.samples) < FEWEST_SAMPLES
    ):
        return
    busy = {one.worker for one in trial.samples}
    if len(busy) > loader.workers / 2:
        return
    yield WorkersWithoutWork(
        culprit=f"{loader.description.dataset}.__iter__",
        place=loader.home or loader.made,
        because=(
            f"all {len(trial.samples):,} samples came from {count(len(busy), 'worker')} of {loader.workers}",
            _waited_words(loader),
        ),
        case=case,
        loader=loader.name,
        workers=loader.workers,
        busy=len(busy),
        accounts_for=("slow",),
    )


def _proxy(watched: ProgramFacts, loader: WatchedLoader, case: Case | None) -> Iterator[Explanation]:
    """Find a hot line that reads a manager's proxy."""
    for place, share in (_seen_lines(watched, loader) or _lines(case))[:2]:
        path = next((one for one in loader.description.proxies if f".{one.rpartition('.')[2]}" in quoted(place)), None)
        if path is None or share < PROXY_SHARE:
            continue
        yield ServedByOneProcess(
            culprit=f"{path} at {place}",
            place=place,
            because=(
                f"{share:.0%} of the loading time: {quoted(place)}",
                f"{path} is a proxy: each access sends a message to the manager's process and waits for the answer",
                _waited_words(loader),
            ),
            case=case,
            path=path,
            share=share,
            accounts_for=("slow",),
        )
        return


PROXY_SHARE = 0.4
REPEATS, FEWEST_SAMPLES, CHEAPEST = 0.8, 12, 0.001


def _all_by_each(case: Case) -> Iterator[Explanation]:
    """Find a stream in which each worker makes every sample, but delivers only its share."""
    alone, shared, loader = case.alone, case.compared, case.watched_loader
    if alone is None or shared is None or loader is None or not loader.iterable or loader.workers < 2:
        return
    (one, _), (each, most) = _processor_time(alone), _processor_time(shared)
    if one < CHEAPEST or each < one * (1 + REPEATS * (loader.workers - 1)) or most < FEWEST_SAMPLES:
        return
    culprit, place, split = stream_split(loader)
    yield EveryWorkerDoesAll(
        culprit=culprit,
        place=place,
        because=(
            f"a sample takes {duration(one)} of CPU time without workers, and {duration(each)} with {loader.workers}",
            split,
        ),
        case=case,
        loader=loader.name,
        workers=loader.workers,
        alone=one,
        each=each,
        accounts_for=("slow",),
    )


def _processor_time(trial: Trial) -> tuple[float, int]:
    """CPU seconds per sample, without the first one of each process, and the number of samples."""
    later = [one for at, one in enumerate(trial.samples) if any(two.worker == one.worker for two in trial.samples[:at])]
    return (sum(one.cpu_seconds for one in later) / len(later) if later else 0.0), len(later)


LOCKS = ("lock", "file lock")
FEWEST = 12  # stacks from which lines are counted


def _seen_lines(watched: ProgramFacts, loader: WatchedLoader) -> list[tuple[Place, float]]:
    """The lines of the watched program at which the loading processes were observed, and their shares."""
    found: Counter[Place] = Counter()
    for process in watched.observations_of(loader):
        for line in process.lines:
            if line.stage in ("sample", "collate"):
                found[line.place] += line.times
    whole = found.total()
    return [(place, times / whole) for place, times in found.most_common()] if whole >= FEWEST else []


def _lines(case: Case | None) -> list[tuple[Place, float]]:
    """The lines on which loading spends its time, from the stacks of a trial, and their shares."""
    trials = [case.as_is, case.alone] if case is not None else []
    observations = next((one.lines for one in trials if one is not None and one.lines), ())
    whole = sum(times for _, times in observations)
    return [(place, times / whole) for place, times in observations] if whole >= 20 else []
