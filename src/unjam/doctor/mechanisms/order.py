"""Order: training samples that are sorted by one of their values, such as the label."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedEpoch, WatchedLoader, WatchedSample
from unjam.doctor.proof import SUGGESTED
from unjam.doctor.queries.loaders import trainers
from unjam.units import count

FEWEST = 20  # examined samples of an epoch
MOST_KINDS = 0.25  # of them; with more distinct values, these are not classes


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedByValue(Explanation):
    """Training never shuffles, and its samples are sorted by a value that has few distinct values. kinds: how many."""

    loader: str
    kinds: int
    streams: bool


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a training loader that returns all samples of one kind before those of the next, in every epoch."""
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
                f"the order of the samples was the same in each of {count(len(kinds), 'complete epoch')}",
                f"one field of the samples has {kinds[0]} distinct values, and the samples were sorted by it",
            ),
            basis=SUGGESTED,
            loader=loader.name,
            kinds=kinds[0],
            streams=loader.iterable,
        )
        return


def _kinds(epoch: WatchedEpoch, loader: WatchedLoader) -> int:
    """The number of distinct values of the value that the samples of an epoch are sorted by; 0 if they are not sorted."""
    if loader.iterable:
        by_worker: dict[int, list[WatchedSample]] = {}
        for one in epoch.samples:
            by_worker.setdefault(one.worker, []).append(one)
        runs = [sorted(found, key=lambda one: int(str(one.index).lstrip("#") or 0)) for found in by_worker.values()]
        # with one worker per kind, batches differ, but each batch still has a single kind
        return min((_runs(found) for found in runs), default=0)
    if epoch.indices != sorted(epoch.indices, key=lambda one: one if isinstance(one, int) else 0):
        return 0
    return _runs(sorted((one for one in epoch.samples if isinstance(one.index, int)), key=lambda one: one.index))


def _runs(samples: list[WatchedSample]) -> int:
    """The number of distinct values of a leaf whose equal values are adjacent."""
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
