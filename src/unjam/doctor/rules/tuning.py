"""From a climb to a recommendation: where the time goes, why more workers stop helping, and the cheapest setting that is enough."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from unjam.doctor.facts.tune_measurements import Climb, Measured, Rung
from unjam.doctor.rules.judging import LIKELY, POSSIBLE, count
from unjam.doctor.rules.rule import Confidence

# settings within this part of the best are as good
AS_GOOD = 0.95
# how much more than the training takes a loader should be able to give
HEADROOM = 1.1
# how many times as fast as with workers it must be without any, where nobody knows what the training takes
OVERLAP = 1.3
# twice the workers that gain less than this have stopped helping
WORTH = 1.1


@dataclass(frozen=True, slots=True)
class Reason:
    """Why more workers do not help."""

    words: str
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    untried: bool = False  # they might; nobody has tried

    @property
    def title(self) -> str:
        """In a line that stands alone."""
        return self.words if self.untried else f"more workers stop helping: {self.words}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """A climb with what is to be said of it. `enough`: the training does not wait with this choice; None: nobody knows."""

    climb: Climb
    choice: Rung | None
    fastest: Rung | None
    enough: bool | None
    needed: float | None  # samples a second that the training takes
    parts: tuple[tuple[str, float], ...]  # where a sample's time goes, seconds of one worker
    stops: tuple[Reason, ...]
    persistent: bool
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The arguments to paste."""
        choice = self.choice
        if choice is None:
            return ""
        words = [f"num_workers={choice.workers}"]
        if choice.workers:
            if choice.prefetch != 2:
                words.append(f"prefetch_factor={choice.prefetch}")
            if self.persistent:
                words.append("persistent_workers=True")
            if choice.start:
                words.append(f"multiprocessing_context={choice.start!r}")
            if choice.driver == "unjam" and choice.threads != 1:
                words.append(f"worker_threads={choice.threads or None}")
        return ", ".join(words)

    @property
    def code(self) -> str:
        """The whole of it, with the import where it is unjam's loader."""
        if self.choice is None:
            return ""
        module = "unjam" if self.choice.driver == "unjam" and self.choice.workers else "torch.utils.data"
        return f"from {module} import DataLoader\nDataLoader(dataset, ..., {self.line})"


def judge(climb: Climb) -> Tuned:
    """Everything that can be said."""
    rates = {rung: climb.rate(rung) for rung in climb.rungs()}
    good = {rung: rate for rung, rate in rates.items() if rate > 0}
    fastest = max(good, key=lambda rung: good[rung]) if good else None
    needed = climb.batch_size / climb.step if climb.step else None
    choice, enough = _choose(climb, good, needed)
    stops = tuple(_stops(climb, good)) if fastest else ()
    if choice is not None and fastest is not None:
        notes = tuple(_notes(climb, good, choice, fastest))
    else:
        notes = ("no setting came through",)
    persistent = choice is not None and _keeps(climb, choice)
    return Tuned(climb, choice, fastest, enough, needed, tuple(_parts(climb)), stops, persistent, notes)


def _choose(climb: Climb, good: dict[Rung, float], needed: float | None) -> tuple[Rung | None, bool | None]:
    """The cheapest of those that are enough; where none is, or nobody knows what is, of those that are nearly the fastest."""
    if not good:
        return None, None
    enough: bool | None = None
    able = list(good)
    if needed is not None:
        able = [rung for rung in good if good[rung] >= needed * HEADROOM and _could_feed(climb, rung, needed)]
        enough = bool(able)
    if not able or needed is None:
        # without workers nothing is loaded while the training computes: that needs a clear lead
        ranked = {rung: rate if rung.workers else rate / OVERLAP for rung, rate in good.items()}
        best = max(ranked.values())
        able = [rung for rung in ranked if ranked[rung] >= best * AS_GOOD]
    return min(able, key=lambda rung: (_cost(climb, rung), -good[rung])), enough


def _could_feed(climb: Climb, rung: Rung, needed: float) -> bool:
    """Without workers the training stands still while a batch is made, however quickly that goes."""
    return rung.workers > 0 or climb.rate(rung) >= needed * 20


def _cost(climb: Climb, rung: Rung) -> tuple[float, ...]:
    """What it takes: workers first, then memory in steps, then what is not torch's own habit."""
    memory = climb.last(rung).memory / 256e6
    odd = (rung.start != "") + (rung.prefetch != 2) + (rung.threads != 1)
    return rung.workers, odd, round(memory), 0 if rung.driver == "torch" else 1


def _keeps(climb: Climb, choice: Rung) -> bool:
    """Whether workers that stay would save a good part of the time between epochs."""
    last = climb.last(choice)
    if not choice.workers or climb.persistent:
        return climb.persistent and choice.workers > 0
    if climb.epochs == 1 or last.turn is None or not climb.epoch_samples or not last.rate:
        return False
    return last.turn > 0.05 * climb.epoch_samples / last.rate


def _parts(climb: Climb) -> list[tuple[str, float]]:
    """Seconds of a worker for one sample, by stage; where there are transforms, they are parts of the first."""
    alone = [one for one in climb.measured if one.rung.driver == "unjam" and one.fine and one.stages]
    if not alone:
        return []
    one = next((m for m in alone if m.rung.workers == 1), None) or min(alone, key=lambda m: m.rung.workers)
    stages = dict(one.stages)
    fetch, transform = stages.get("getitem", 0.0), 0.0
    profiled = next((m for m in reversed(alone) if m.profile and m.profile["transforms"]), None)
    if profiled is not None and profiled.profile is not None and profiled.samples:
        transform = sum(each["own"] for each in profiled.profile["transforms"]) / profiled.samples
        transform = min(fetch, transform)
    parts = [("fetch", fetch - transform), ("transform", transform), ("collate", stages.get("collate", 0.0))]
    parts.append(("pack", stages.get("pickle", 0.0)))
    if one.rung.workers:
        # the main process: receiving, opening, handing over
        parts.append(("receive", one.main_cpu / one.rate if one.rate else 0.0))
    return [(name, seconds) for name, seconds in parts if seconds > 0]


def _stops(climb: Climb, good: dict[Rung, float]) -> list[Reason]:
    """Why the ladder does not go on."""
    ladder = sorted((r for r in good if r.driver == "unjam" and _plain(r) and r.workers), key=lambda rung: rung.workers)
    last = next((b for a, b in itertools.pairwise(ladder) if good[b] < good[a] * WORTH), None)
    if last is None:
        top = ladder[-1] if ladder else None
        if top is not None and top.workers >= climb.most:
            words = f"more than {count(climb.most, 'worker')} were not tried: {climb.because}"
            return [Reason(words, LIKELY, ("the last step still gained",), untried=True)]
        return []
    before = ladder[ladder.index(last) - 1]
    here, there = climb.last(before), climb.last(last)
    gain = f"{count(last.workers, 'worker')}: {good[last] / good[before]:.2f} times as fast as {before.workers}"
    found = [reason for reason in _causes(climb, here, there, gain) if reason is not None]
    return found or [Reason("no cause could be seen", POSSIBLE, (gain,))]


def _causes(climb: Climb, here: Measured, there: Measured, gain: str) -> list[Reason | None]:
    cores = there.workers_cpu + there.main_cpu
    slower = _ratio(there.stages.get("getitem", 0.0), here.stages.get("getitem", 0.0))
    per_sample = _ratio(_cpu_each(there), _cpu_each(here))
    # a short trial has few looks: all of this setting's count
    seen = Counter[str]()
    for trial in climb.of(there.rung):
        seen.update(trial.waits)
    looks = seen.total()
    took = f"a sample takes {slower:.1f} times as long with {there.rung.workers} workers as with {here.rung.workers}"
    full = cores >= 0.85 * climb.processors
    waits_for = {"lock": "a lock that the workers share", "disk": "the disk", "file": "files", "socket": "a server"}
    kind = max(waits_for, key=lambda name: seen[name])
    # of two workers that take turns, one waits and one works
    share = seen[kind] / looks if looks else 0.0
    waits = share > 0.3 and slower > 1.3 and not full
    return [
        Reason(f"all {count(climb.processors, 'processor')} are in use", LIKELY, (gain, f"{cores:.1f} in use"))
        if full
        else None,
        Reason(
            f"samples wait for {waits_for[kind]}",
            LIKELY,
            (gain, took, f"{share:.0%} of the looks at workers found that"),
        )
        if waits
        else None,
        Reason("samples wait for something that the workers share", POSSIBLE, (gain, took))
        if not full and not waits and slower > 1.5 and per_sample < 1.3
        else None,
        Reason(
            "the memory's speed, or processors that share a core",
            POSSIBLE,
            (gain, f"a sample needs {per_sample:.1f} times the processor time"),
        )
        if per_sample > 1.3 and not full
        else None,
        Reason(
            "the main process is busy receiving batches",
            LIKELY,
            (gain, f"it uses {there.main_cpu:.0%} of a processor"),
        )
        if there.main_cpu > 0.85
        else None,
        Reason(
            "a few slow samples hold everybody up",
            LIKELY,
            (gain, f"{there.stalled:.0%} of the time went into waiting for one; the slowest: {_named(there)}"),
        )
        if there.stalled > 0.2
        else None,
    ]


def _notes(climb: Climb, good: dict[Rung, float], choice: Rung, fastest: Rung) -> list[str]:
    notes = []
    now = good.get(climb.as_is, 0.0)
    if now and choice != climb.as_is:
        notes.append(f"{good[choice] / now:.2f} times as fast as it is now ({climb.as_is})")
    elif choice == climb.as_is and len(good) > 2:
        notes.append("it is as it should be")
    if climb.cut:
        notes.append("the time was over before the ladder was: a larger --budget goes on")
    if choice != fastest and good[choice] < good[fastest] * AS_GOOD:
        notes.append(
            f"{fastest} would be {good[fastest] / good[choice]:.2f} times as fast, which the training does not need"
        )
    twin = next((r for r in good if r.driver == "torch" and r.workers == choice.workers and choice.workers), None)
    if choice.driver == "unjam" and twin is not None:
        notes.append(f"torch's loader with the same workers: {good[twin] / good[choice]:.2f} times as fast")
    for rung in climb.rungs():
        bad = next((one for one in climb.of(rung) if not one.fine), None)
        if bad is not None:
            notes.append(f"{rung}: {bad.outcome}, {bad.note}")
    return notes


def _plain(rung: Rung) -> bool:
    return rung.prefetch == 2 and rung.threads == 1 and not rung.start


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else 1.0


def _cpu_each(one: Measured) -> float:
    return one.workers_cpu / one.rate if one.rate else 0.0


def _named(one: Measured) -> str:
    return ", ".join(f"{index} ({seconds:.2f} s)" for index, seconds in one.slowest[:3])
