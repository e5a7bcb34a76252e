"""What a run says about its data loading: where the training's waiting went, and the changes that would help most.

Every number comes from the run itself. What a change would save is a bound from the times that were measured, never a promise.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.facts.run import LoaderRun, Made, RunFacts, Wait
from unjam.doctor.rules.judging import count

# seconds and shares below which nothing is worth saying
_MOMENT, _SHARE = 0.5, 0.03
# a sample that took this many times as long as half of the others
_ODD = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Seconds that the training stood still, and for what."""

    seconds: float
    words: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, what it would save at most, and the rule that tells more."""

    words: str
    saves: float
    code: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A run with what is to be said of it."""

    run: RunFacts
    faults: tuple[tuple[LoaderRun, tuple[Fault, ...]], ...]
    advice: tuple[Advice, ...]


def advise(run: RunFacts) -> Judged:
    """The faults of every loader, and the three changes that would help most."""
    # what a helper thread waits for is no time of the training's
    found = [advice for loader in run.loaders if not loader.aside for advice in _advice(loader, run)]
    worth = [one for one in found if one.saves >= max(_MOMENT, _SHARE * run.seconds) or one.code == "UJ306"]
    best = sorted(worth, key=lambda one: -one.saves)[:3]
    return Judged(run, tuple((one, tuple(faults(one))) for one in run.loaders), tuple(best))


def faults(loader: LoaderRun) -> list[Fault]:
    """Where the waiting went, the longest first."""
    odd = list(slow_samples(loader))
    by_sample = min(sum(seconds for seconds, _, _ in odd), loader.waited)
    by_time = min(sum(seconds for _, seconds in loader.overdue), loader.waited - by_sample)
    rest = max(0.0, loader.waited - by_sample - by_time)
    work = loader.sampling + loader.collating + loader.packing
    own = min(sum(loader.own_starts), loader.started)
    found = [
        Fault(loader.started - own, "starting: " + count(loader.epochs, "epoch")),
        Fault(own, "unjam's own start: " + count(len(loader.own_starts), "set") + " of workers"),
    ]
    if odd:
        names = ", ".join(list(dict.fromkeys(sample for _, sample, _ in sorted(odd, reverse=True)))[:3])
        found.append(Fault(by_sample, f"slow samples: {names}"))
    if loader.overdue:
        names = ", ".join(list(dict.fromkeys(sample for sample, _ in loader.overdue))[:3])
        found.append(Fault(by_time, f"samples over their time: {names}"))
    if work > 0:
        found += [
            Fault(rest * loader.sampling / work, "loading samples"),
            Fault(rest * loader.collating / work, "collating"),
            Fault(rest * loader.packing / work, "packing batches"),
        ]
    elif rest:
        found.append(Fault(rest, "waiting for batches"))
    return sorted((one for one in found if one.seconds >= 0.01), key=lambda one: -one.seconds)


def slow_samples(loader: LoaderRun) -> Iterator[tuple[float, str, float]]:
    """(seconds waited for it, the sample, seconds that it took) for samples that are far from the others."""
    if len(loader.made) < 3:
        return
    usual = statistics.median(one.longest for one in loader.made)
    makers = iter(sorted(loader.made, key=lambda one: one.done))
    current = next(makers, None)
    for wait in loader.waits:
        latest: Made | None = None
        while current is not None and current.done <= wait.got + 2_000_000:
            latest, current = current, next(makers, None)
        if latest is None or wait.first or wait.seconds < 0.02:
            continue
        if latest.longest > _ODD * usual and latest.longest > 0.3 * (wait.got - wait.asked) and latest.slowest:
            yield min(wait.seconds, latest.longest / 1e9), latest.slowest, latest.longest / 1e9


def _advice(loader: LoaderRun, run: RunFacts) -> Iterator[Advice]:
    at = f" ({loader.place})" if loader.place else ""
    again = loader.starts[1:]
    # two loaders that one line makes, for training and for validation, are not made anew in each epoch
    anew = loader.loaders > 1 and loader.epochs <= loader.loaders
    if loader.workers and again and (anew or not loader.persistent):
        first = "the loader made once, before the loop, with " if anew else ""
        own = sum(loader.own_starts[1:]) / len(again)
        ours = f", {own:.2f} s of it for unjam itself" if own >= 0.05 else ""
        yield Advice(
            f"{first}persistent_workers=True{at}: each epoch after the first waited {sum(again) / len(again):.2f} s to begin{ours}",
            sum(again),
            "UJ604",
        )
    odd = sorted(slow_samples(loader), reverse=True)
    if odd:
        _, sample, took = odd[0]
        yield Advice(
            f"look at sample {sample}{at}: it took {took:.2f} s; {count(len(odd), 'such sample')} held the training",
            sum(one for one, _, _ in odd),
            "UJ603",
        )
    work = loader.sampling + loader.collating + loader.packing
    if not loader.workers and loader.waited > 0:
        # what is loaded while the model trains costs nothing
        hidden = min(loader.waited, loader.trained) if loader.trained else 0.0
        yield Advice(
            f"num_workers={min(run.cpus, 4)}{at}: loading happened while the training stood still", hidden, "UJ606"
        )
    elif loader.workers and work > 0:
        steady = max(0.0, loader.waited - sum(one for one, _, _ in odd) - sum(one for _, one in loader.overdue))
        able = max(run.cpus - 1, 1)
        if able > loader.workers:
            saved = steady * (1 - loader.workers / able)
            yield Advice(
                f"num_workers={able}{at}: {loader.workers} could not keep up, and {run.cpus} processors are there",
                saved,
                "UJ606",
            )
        if loader.collating > 0.4 * work:
            yield Advice(
                f"a cheaper collate function{at}: it takes {loader.collating / work:.0%} of the workers' time",
                steady * loader.collating / work,
            )
        elif loader.packing > 0.4 * work:
            yield Advice(
                f"smaller batches of bytes{at}: packing takes {loader.packing / work:.0%} of the workers' time; convert later "
                "(uint8 instead of float32)",
                steady * loader.packing / work,
            )
        elif able <= loader.workers:
            yield Advice(
                f"cheaper samples{at}: {count(loader.workers, 'worker')} could not keep up on {count(run.cpus, 'processor')}; if the samples wait "
                "more than they compute, more workers",
                steady * loader.sampling / work,
            )
    for failure in loader.failures[:1]:
        if loader.failed:
            yield Advice(f"repair what fails{at}: {failure.words} (sample {failure.samples})", 0.0, "UJ306")


def longest_waits(loader: LoaderRun, most: int = 5) -> list[Wait]:
    """The waits that hurt most."""
    return sorted(loader.waits, key=lambda one: -one.seconds)[:most]
