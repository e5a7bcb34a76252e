"""Advice from a finished run: why the training waited, and which changes would help most.

Every number is measured in the run itself. The saving of a change is an upper bound from the
measured times, not a promise.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.facts.run import LoaderRun, RunFacts, TimedBatch
from unjam.units import count, duration

# savings below this many seconds, or below this share of the run, are not reported
_WORTH_SECONDS, _WORTH_SHARE = 0.5, 0.03
# an outlier: the slowest sample of a batch took this many times the median of all batches
_OUTLIER = 5.0


@dataclass(frozen=True, slots=True)
class WaitCause:
    """How long training waited, and for what."""

    seconds: float
    words: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, the most seconds it could save, and the code of the rule that explains it."""

    words: str
    saves: float
    code: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A run, what training waited for with each loader, and the advice."""

    run: RunFacts
    loaders: tuple[tuple[LoaderRun, tuple[WaitCause, ...]], ...]
    advice: tuple[Advice, ...]


def advise(run: RunFacts) -> Judged:
    """Say what training waited for with every loader, and the three changes that would help most."""
    # training does not lose the time that a helper thread waits
    found = [advice for loader in run.loaders if not loader.in_helper_thread for advice in _advice(loader, run)]
    worth = [
        one for one in found if one.saves >= max(_WORTH_SECONDS, _WORTH_SHARE * run.seconds) or one.code == "UJ306"
    ]
    best = sorted(worth, key=lambda one: -one.saves)[:3]
    return Judged(run, tuple((one, tuple(wait_causes(one))) for one in run.loaders), tuple(best))


def wait_causes(loader: LoaderRun) -> list[WaitCause]:
    """Split the waiting time by cause, the longest first."""
    outliers = list(slow_samples(loader))
    by_sample = min(sum(seconds for seconds, _, _ in outliers), loader.waited)
    by_time = min(sum(seconds for _, seconds in loader.overdue), loader.waited - by_sample)
    rest = max(0.0, loader.waited - by_sample - by_time)
    work = loader.sampling + loader.collating + loader.packing
    own = min(sum(loader.own_starts), loader.started)
    found = [
        WaitCause(loader.started - own, f"until the first batch ({count(loader.epochs, 'epoch')})"),
        WaitCause(own, f"for unjam's own startup ({count(len(loader.own_starts), 'set')} of workers)"),
    ]
    if outliers:
        slowest = list(dict.fromkeys(sample for _, sample, _ in sorted(outliers, reverse=True)))[:3]
        noun = "sample" if len(slowest) == 1 else "samples"
        found.append(WaitCause(by_sample, f"for slow {noun} {', '.join(map(loader.sample, slowest))}"))
    if loader.overdue:
        timed_out = list(dict.fromkeys(sample for sample, _ in loader.overdue))[:3]
        noun = "sample" if len(timed_out) == 1 else "samples"
        found.append(WaitCause(by_time, f"for timed-out {noun} {', '.join(timed_out)}"))
    if work > 0:
        found += [
            WaitCause(rest * loader.sampling / work, "for loading samples"),
            WaitCause(rest * loader.collating / work, "for collating"),
            WaitCause(rest * loader.packing / work, "for packing batches"),
        ]
    elif rest:
        found.append(WaitCause(rest, "for batches"))
    return sorted((one for one in found if one.seconds >= 0.01), key=lambda one: -one.seconds)


def slow_samples(loader: LoaderRun) -> Iterator[tuple[float, str, float]]:
    """Yield (seconds waited for it, the sample, seconds that it took) for each outlier.

    A wait is counted for the outlier that was being made during most of it.
    """
    if len(loader.made) < 3:
        return
    usual = statistics.median(one.longest for one in loader.made)
    outliers = [one for one in loader.made if one.slowest and one.longest > _OUTLIER * usual]
    held: dict[TimedBatch, float] = {}
    for wait in loader.waits:
        if wait.first or wait.seconds < 0.02:
            continue
        during = max(outliers, key=lambda one: min(one.done, wait.got) - max(one.begun, wait.asked), default=None)
        if during is None or during.done < wait.asked or during.begun > wait.got:
            continue
        if during.longest > 0.3 * (wait.got - wait.asked):
            held[during] = held.get(during, 0.0) + min(wait.seconds, during.longest / 1e9)
    for batch, seconds in held.items():
        yield min(seconds, batch.longest / 1e9), batch.slowest, batch.longest / 1e9


def _advice(loader: LoaderRun, run: RunFacts) -> Iterator[Advice]:
    at = f" ({loader.where})" if loader.where else ""
    again = loader.starts[1:]
    # one line may create two loaders (training, validation) that live for many epochs; only if
    # there are no more epochs than loaders, each epoch made a new loader
    anew = loader.loaders > 1 and loader.epochs <= loader.loaders
    if loader.workers and again and (anew or not loader.persistent):
        first = "create the loader once, before the loop, with" if anew else "set"
        own = sum(loader.own_starts[1:]) / len(again)
        ours = f", of which unjam itself took {duration(own)}" if own >= 0.05 else ""
        yield Advice(
            f"{first} persistent_workers=True{at}: each epoch after the first took {duration(sum(again) / len(again))} to start{ours}",
            sum(again),
            "UJ604",
        )
    outliers = sorted(slow_samples(loader), reverse=True)
    if outliers:
        _, sample, took = outliers[0]
        yield Advice(
            f"examine sample {loader.sample(sample)}{at}: it took {duration(took)}; training waited for {count(len(outliers), 'such sample')}",
            sum(one for one, _, _ in outliers),
            "UJ603",
        )
    work = loader.sampling + loader.collating + loader.packing
    if not loader.workers and loader.waited > 0:
        # workers load while the model trains, so at most the training time can hide loading time
        hidden = min(loader.waited, loader.trained) if loader.trained else 0.0
        yield Advice(
            f"set num_workers={min(run.cpus, 4)}{at}: without workers, training waits while each batch is loaded",
            hidden,
            "UJ606",
        )
    elif loader.workers and work > 0:
        steady = max(0.0, loader.waited - sum(one for one, _, _ in outliers) - sum(one for _, one in loader.overdue))
        able = max(run.cpus - 1, 1)
        if able > loader.workers:
            saved = steady * (1 - loader.workers / able)
            yield Advice(
                f"set num_workers={able}{at}: {count(loader.workers, 'worker')} could not keep up, and there are {run.cpus} processors",
                saved,
                "UJ606",
            )
        if loader.collating > 0.4 * work:
            yield Advice(
                f"make the collate function cheaper{at}: it takes {loader.collating / work:.0%} of the workers' time",
                steady * loader.collating / work,
            )
        elif loader.packing > 0.4 * work:
            yield Advice(
                f"reduce the size of batches in bytes{at}: packing takes {loader.packing / work:.0%} of the workers' time; "
                "convert them later (send uint8 instead of float32)",
                steady * loader.packing / work,
            )
        elif able <= loader.workers:
            yield Advice(
                f"make samples cheaper{at}: {count(loader.workers, 'worker')} could not keep up on {count(run.cpus, 'processor')}; "
                "if they mostly wait for I/O, add workers",
                steady * loader.sampling / work,
            )
    for failure in loader.failures[:1]:
        if loader.failed:
            yield Advice(f"fix the failing samples{at}: {failure.words} (sample {failure.samples})", 0.0, "UJ306")
