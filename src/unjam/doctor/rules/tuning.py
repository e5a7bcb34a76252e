"""From tune measurements to a recommendation.

Says where the time goes, why more workers stop helping, and which is the cheapest setting that is fast enough.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.facts.tune_measurements import Measurement, TuneResult, TuneSetting
from unjam.doctor.proof import AGREES, SUGGESTED, Confidence, Ground, prove
from unjam.units import all_in_use, count, duration, times, with_file

# a setting with at least this share of the best rate counts as equally good
AS_GOOD = 0.95
# a loader should deliver this many times what the training consumes
HEADROOM = 1.1
# if the training's need is unknown, loading without workers must be this many times as fast as with them
OVERLAP = 1.3
# if the next number of workers gains less than this factor, more workers have stopped helping
WORTH = 1.1


@dataclass(frozen=True, slots=True)
class TuneReason:
    """Why more workers do not help."""

    words: str
    ground: Ground
    evidence: tuple[str, ...] = ()
    untried: bool = False  # more workers might help, but were not tried

    @property
    def confidence(self) -> Confidence:
        """How sure it is."""
        return prove(self.ground, None).confidence

    @property
    def title(self) -> str:
        """The reason as one line that can stand alone."""
        return self.words if self.untried else f"adding workers stops helping: {self.words}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The tune measurements and the conclusions from them.

    enough: whether the choice is fast enough that the training does not wait; None if unknown.
    """

    tune_result: TuneResult
    choice: TuneSetting | None
    fastest: TuneSetting | None
    enough: bool | None
    needed: float | None  # samples a second that the training consumes
    parts: tuple[tuple[str, float], ...]  # seconds of one worker for a sample, by stage
    stops: tuple[TuneReason, ...]
    persistent: bool
    notes: tuple[str, ...]

    @property
    def line(self) -> str:
        """The arguments to paste into the program."""
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
        """The whole call, with the import of the right DataLoader."""
        if self.choice is None:
            return ""
        module = "unjam" if self.choice.driver == "unjam" and self.choice.workers else "torch.utils.data"
        return f"from {module} import DataLoader\nDataLoader(dataset, ..., {self.line})"


def judge(tune_result: TuneResult) -> Tuned:
    """Draw all conclusions from the measurements."""
    good = tune_result.good_rates()
    fastest = max(good, key=lambda setting: good[setting]) if good else None
    needed = tune_result.batch_size / tune_result.step if tune_result.step else None
    choice, enough = _choose(tune_result, good, needed)
    stops = tuple(_why_scaling_stops(tune_result, good)) if fastest else ()
    if choice is not None and fastest is not None:
        notes = tuple(_notes(tune_result, good, choice, fastest))
    else:
        notes = ("no setting succeeded",)
    persistent = choice is not None and _should_persist(tune_result, choice)
    return Tuned(tune_result, choice, fastest, enough, needed, tuple(_parts(tune_result)), stops, persistent, notes)


def _choose(
    tune_result: TuneResult, good: dict[TuneSetting, float], needed: float | None
) -> tuple[TuneSetting | None, bool | None]:
    """Choose the cheapest setting that is fast enough for the training.

    If none is fast enough, or the need is unknown, choose the cheapest setting that is nearly as fast as the fastest.
    """
    if not good:
        return None, None
    enough: bool | None = None
    candidates = list(good)
    if needed is not None:
        # without workers the training waits while each batch is made, so that must be very fast
        candidates = [setting for setting in good if good[setting] >= needed * (HEADROOM if setting.workers else 20)]
        enough = bool(candidates)
    if not candidates or needed is None:
        # without workers nothing is loaded while the training computes, so that must be much faster
        ranked = {setting: rate if setting.workers else rate / OVERLAP for setting, rate in good.items()}
        best = max(ranked.values())
        candidates = [setting for setting in ranked if ranked[setting] >= best * AS_GOOD]
    return min(candidates, key=lambda setting: (_cost(tune_result, setting), -good[setting])), enough


def _cost(tune_result: TuneResult, setting: TuneSetting) -> tuple[float, ...]:
    """Return the sort key: workers, unusual options, memory in steps, then torch before unjam."""
    memory = tune_result.last(setting).memory / 256e6
    unusual = (setting.start != "") + (setting.prefetch != 2) + (setting.threads != 1)
    return setting.workers, unusual, round(memory), 0 if setting.driver == "torch" else 1


def _should_persist(tune_result: TuneResult, choice: TuneSetting) -> bool:
    """Whether persistent workers would save a large part of the time between epochs."""
    last = tune_result.last(choice)
    if not choice.workers or tune_result.persistent:
        return tune_result.persistent and choice.workers > 0
    if tune_result.epochs == 1 or last.turn is None or not tune_result.epoch_samples or not last.rate:
        return False
    return last.turn > 0.05 * tune_result.epoch_samples / last.rate


def _parts(tune_result: TuneResult) -> list[tuple[str, float]]:
    """Return seconds for one sample by stage; fetch excludes the time of profiled transforms."""
    staged = [one for one in tune_result.measurements if one.setting.driver == "unjam" and one.fine and one.stages]
    if not staged:
        return []
    one = next((m for m in staged if m.setting.workers == 1), None) or min(staged, key=lambda m: m.setting.workers)
    stages = dict(one.stages)
    fetch, transform = stages.get("getitem", 0.0), 0.0
    profiled = next((m for m in reversed(staged) if m.profile and m.profile["transforms"]), None)
    if profiled is not None and profiled.profile is not None and profiled.samples:
        transform = sum(each["own"] for each in profiled.profile["transforms"]) / profiled.samples
        transform = min(fetch, transform)
    parts = [("fetch", fetch - transform), ("transform", transform), ("collate", stages.get("collate", 0.0))]
    parts.append(("pack", stages.get("pickle", 0.0)))
    if one.setting.workers:
        # time of the main process: receiving, unpacking and delivering a batch
        parts.append(("receive", one.main_cpu / one.rate if one.rate else 0.0))
    return [(name, seconds) for name, seconds in parts if seconds > 0]


def _why_scaling_stops(tune_result: TuneResult, good: dict[TuneSetting, float]) -> list[TuneReason]:
    """Say why more workers stop helping."""
    by_workers = sorted(
        (r for r in good if r.driver == "unjam" and r.is_plain and r.workers), key=lambda setting: setting.workers
    )
    last = next((b for a, b in itertools.pairwise(by_workers) if good[b] < good[a] * WORTH), None)
    if last is None:
        top = by_workers[-1] if by_workers else None
        if top is not None and top.workers >= tune_result.most:
            words = f"more than {count(tune_result.most, 'worker')} were not tried: {tune_result.because}"
            return [TuneReason(words, AGREES, ("the last increase was still faster",), untried=True)]
        return []
    before = by_workers[by_workers.index(last) - 1]
    here, there = tune_result.last(before), tune_result.last(last)
    gain = f"{count(last.workers, 'worker')}: {times(good[last] / good[before])} as fast as {before.workers}"
    return list(_causes(tune_result, here, there, gain)) or [TuneReason("the cause is unknown", SUGGESTED, (gain,))]


def _causes(tune_result: TuneResult, here: Measurement, there: Measurement, gain: str) -> Iterator[TuneReason]:
    cores = there.workers_cpu + there.main_cpu
    slower = _ratio(there.stages.get("getitem", 0.0), here.stages.get("getitem", 0.0))
    per_sample = _ratio(_cpu_each(there), _cpu_each(here))
    # a short trial has few observations, so add up those of all trials of this setting
    seen = Counter[str]()
    for trial in tune_result.of(there.setting):
        seen.update(trial.waits)
    stack_samples = seen.total()
    took = (
        f"a sample takes {slower:.1f} times as long with {there.setting.workers} workers as with {here.setting.workers}"
    )
    full = cores >= 0.85 * tune_result.processors
    waits_for = {"lock": "a lock that the workers share", "disk": "the disk", "file": "files", "socket": "a server"}
    kind = max(waits_for, key=lambda name: seen[name])
    # of two workers that take turns, one waits while the other works, so the share is at most 0.5
    share = seen[kind] / stack_samples if stack_samples else 0.0
    if full:
        yield TuneReason(all_in_use(tune_result.processors), AGREES, (gain, f"{cores:.1f} in use"))
    elif share > 0.3 and slower > 1.3:
        shown = f"{share:.0%} of the workers' stack samples show that wait"
        yield TuneReason(f"samples wait for {waits_for[kind]}", AGREES, (gain, took, shown))
    elif slower > 1.5 and per_sample < 1.3:
        yield TuneReason("samples wait for something that the workers share", SUGGESTED, (gain, took))
    if per_sample > 1.3 and not full:
        needs = f"a sample needs {per_sample:.1f} times as much processor time"
        yield TuneReason("memory bandwidth, or processors that share a core", SUGGESTED, (gain, needs))
    if there.main_cpu > 0.85:
        uses = f"it uses {there.main_cpu:.0%} of a processor"
        yield TuneReason("the main process is busy receiving batches", AGREES, (gain, uses))
    if there.stalled > 0.2:
        spent = f"{there.stalled:.0%} of the time was spent waiting for one of them; the slowest: {_named(there)}"
        yield TuneReason("all workers wait for a few slow samples", AGREES, (gain, spent))


def _notes(
    tune_result: TuneResult, good: dict[TuneSetting, float], choice: TuneSetting, fastest: TuneSetting
) -> list[str]:
    notes = []
    now = good.get(tune_result.as_is, 0.0)
    if now and choice != tune_result.as_is:
        notes.append(f"{times(good[choice] / now)} as fast as the current setting ({tune_result.as_is})")
    elif choice == tune_result.as_is and len(good) > 2:
        notes.append("the current setting is already the best measured")
    if tune_result.cut:
        notes.append("not all numbers of workers were tried for lack of time (raise --budget)")
    if choice != fastest and good[choice] < good[fastest] * AS_GOOD:
        notes.append(
            f"{fastest} would be {times(good[fastest] / good[choice])} as fast, but the training does not need that"
        )
    twin = next((r for r in good if r.driver == "torch" and r.workers == choice.workers and choice.workers), None)
    if choice.driver == "unjam" and twin is not None:
        notes.append(f"torch's loader with the same workers: {times(good[twin] / good[choice])} as fast")
    for setting in tune_result.settings():
        bad = next((one for one in tune_result.of(setting) if not one.fine), None)
        if bad is not None:
            notes.append(f"{setting}: {bad.outcome}, {bad.note}")
    return notes


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else 1.0


def _cpu_each(one: Measurement) -> float:
    return one.workers_cpu / one.rate if one.rate else 0.0


def _named(one: Measurement) -> str:
    return ", ".join(
        f"{with_file(index, one.files.get(index, ''))} ({duration(seconds)})" for index, seconds in one.slowest[:3]
    )
