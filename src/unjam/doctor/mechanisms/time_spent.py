"""Time: how long the training waited for data, and which lines the loading spends its time on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Place
from unjam.doctor.facts.watched import Watched, WatchedLoader
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import OBSERVED

# worth an answer, and worth a warning: seconds that the training waited after the first batch of each epoch, and their share
SECONDS, SHARE = 2.0, 0.35
WARN_SECONDS, WARN_SHARE = 6.0, 0.55
HOT = 0.6  # a line with this share of the loading time is worth a warning earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWaits(Explanation):
    """waited, total: seconds. hot: the share of the loading time that the hottest line takes. each: seconds for one sample."""

    loader: str
    waited: float
    total: float
    workers: int
    each: float
    line: Place | None
    hot: float
    minor: bool


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find the loader that the training waited for most."""
    watched = known.watched
    if watched.outcome in ("failed", "frozen"):
        return
    found = [one for one in watched.loaders if _waited(one) >= SECONDS and _waited(one) >= SHARE * _total(one)]
    worst = max(found, key=_waited, default=None)
    if worst is not None:
        yield _explanation(watched, worst, known.case_of(worst.pid, worst.number))


def _waited(loader: WatchedLoader) -> float:
    return sum(epoch.waited for epoch in loader.epochs)


def _total(loader: WatchedLoader) -> float:
    return sum(epoch.seconds for epoch in loader.epochs)


def _explanation(watched: Watched, loader: WatchedLoader, case: Case | None) -> TrainingWaits:
    waited, total = _waited(loader), _total(loader)
    loaded, loading = sum(e.loaded for e in loader.epochs), sum(e.loading for e in loader.epochs)
    lines = _seen_lines(watched, loader) or _lines(case)
    place, hot = lines[0] if lines else (None, 0.0)
    each = loading / loaded if loaded else 0.0
    return TrainingWaits(
        culprit=f"{place}" if place is not None else loader.name,
        place=place or loader.home or loader.made or loader.place,
        because=(
            f"of {total:.1f} s with {loader.name} the training waited {waited:.1f} s ({waited / total:.0%}), without the first batches",
            f"a sample takes {each * 1000:.1f} ms to load"
            + (f", in {count(loader.workers, 'worker')}" if loader.workers else ""),
            *(f"{share:.0%} of the loading time: {quoted(at)}" for at, share in lines[:3] if share >= 0.05),
            f"with loading that costs nothing it would take {total - waited:.1f} s",
        ),
        basis=OBSERVED,
        case=case,
        loader=loader.name,
        waited=waited,
        total=total,
        workers=loader.workers,
        each=each,
        line=place,
        hot=hot,
        minor=waited < WARN_SECONDS or waited < (SHARE if hot > HOT else WARN_SHARE) * total,
        accounts_for=("slow",),
    )


FEWEST = 12  # stacks of which lines are counted


def _seen_lines(watched: Watched, loader: WatchedLoader) -> list[tuple[Place, float]]:
    """The lines of the program as it ran at which looks found the processes that load."""
    found: Counter[Place] = Counter()
    for looks in watched.looks_at(loader):
        for line in looks.lines:
            if line.stage in ("sample", "collate"):
                found[line.place] += line.times
    whole = found.total()
    return [(place, times / whole) for place, times in found.most_common()] if whole >= FEWEST else []


def _lines(case: Case | None) -> list[tuple[Place, float]]:
    """The lines that loading spends its time on, from looks at the processes of a trial."""
    trials = [case.as_is, case.alone] if case is not None else []
    looks = next((one.lines for one in trials if one is not None and one.lines), ())
    whole = sum(times for _, times in looks)
    return [(place, times / whole) for place, times in looks] if whole >= 20 else []
