"""Order: training samples that come sorted by one of their values, such as the label."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedEpoch, WatchedLoader, WatchedSample
from unjam.doctor.mechanisms.passes import trainers
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import SUGGESTED

FEWEST = 20  # samples of a pass that were looked at
MOST_KINDS = 0.25  # of them: more different values are no classes


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedByValue(Explanation):
    """A training that never shuffles takes samples that are sorted by a value with few kinds. kinds: how many."""

    loader: str
    kinds: int
    streams: bool


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a training loader that gives one kind of samples after the other, in every pass."""
    for loader in trainers(known.watched):
        if loader.description.random or not loader.complete_epochs or loader.description.sampler_file:
            continue
        kinds = [_kinds(epoch, loader) for epoch in loader.complete_epochs]
        if min(kinds) < 2:
            continue
        yield SortedByValue(
            culprit=f"{loader.description.sampler or loader.description.dataset} of {loader.name}",
            place=loader.made or loader.place,
            because=(
                f"every one of {count(len(kinds), 'whole pass', 'whole passes')} went through the samples in the same order",
                f"one of their values has {kinds[0]} kinds, and they came one kind after the other",
            ),
            basis=SUGGESTED,
            loader=loader.name,
            kinds=kinds[0],
            streams=loader.iterable,
            accounts_for=("order",),
        )
        return


def _kinds(epoch: WatchedEpoch, loader: WatchedLoader) -> int:
    """The number of kinds of the value that the samples of a pass are sorted by; 0 if they are not."""
    if loader.iterable:
        by_worker: dict[int, list[WatchedSample]] = {}
        for one in epoch.samples:
            by_worker.setdefault(one.worker, []).append(one)
        runs = [sorted(found, key=lambda one: int(str(one.index).lstrip("#") or 0)) for found in by_worker.values()]
        # with one worker for each kind, batches differ from one another, and yet each has one kind
        return min((_runs(found) for found in runs), default=0)
    if epoch.indices != sorted(epoch.indices, key=lambda one: one if isinstance(one, int) else 0):
        return 0
    return _runs(sorted((one for one in epoch.samples if isinstance(one.index, int)), key=lambda one: one.index))


def _runs(samples: list[WatchedSample]) -> int:
    """The number of kinds of a leaf whose equal values lie together."""
    if len(samples) < FEWEST:
        return 0
    leaves = [one.leaves.split(".") for one in samples]
    if len({len(one) for one in leaves}) != 1:
        return 0
    for column in zip(*leaves, strict=True):
        kinds = len(set(column))
        changes = sum(a != b for a, b in itertools.pairwise(column))
        if 2 <= kinds <= MOST_KINDS * len(samples) and changes == kinds - 1:
            return kinds
    return 0
