"""Queries on a watched program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.faults import SeedCall
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedEpoch, WatchedLoader, WatchedSample
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import share_taken_at
from unjam.doctor.facts.trial import Place


def trainers(watched: ProgramFacts) -> list[WatchedLoader]:
    """The loaders whose batches train a model; if no optimizer steps at all, those used with gradients."""
    found = [one for one in watched.loaders if one.trains]
    if found or watched.trains:
        return found
    return [one for one in watched.loaders if any(epoch.grad for epoch in one.epochs)]


def evaluators(watched: ProgramFacts) -> list[WatchedLoader]:
    """The loaders that are used without training, in a program that trains."""
    return [one for one in watched.loaders if watched.trains and not one.trains and one.epochs]


def consecutive(loader: WatchedLoader) -> Iterator[tuple[WatchedEpoch, WatchedEpoch]]:
    """Each complete epoch with the next complete one of the same training."""
    yield from ((one, other) for one, other in itertools.pairwise(loader.complete_epochs) if same_training(one, other))


def same_training(one: WatchedEpoch, other: WatchedEpoch) -> bool:
    """Whether two epochs train the same model: another optimizer means another run, which may begin like the first one."""
    return 0 in (one.optimizer, other.optimizer) or one.optimizer == other.optimizer


def is_one_of_ranks(case: Case) -> bool:
    """Whether other processes of the program have the same loader."""
    return case.program is not None and any(case.watched_loader in group for group in case.program.siblings())


def by_index(epoch: WatchedEpoch) -> dict[Any, WatchedSample]:
    """The examined samples, by index."""
    return {one.index: one for one in epoch.samples}


def draws_random_numbers(loader: WatchedLoader) -> bool:
    """Whether samples of a loader draw random numbers."""
    return any(sample.drew for epoch in loader.epochs for sample in epoch.samples)


def shared_objects(one: WatchedLoader, other: WatchedLoader) -> set[str]:
    """The names of a loader's objects that another loader of the same process also holds."""
    if one.pid != other.pid:
        return set()
    known = set(other.description.tokens.values())
    return {name for name, token in one.description.tokens.items() if token in known}


def attribute_name(path: str) -> str:
    """The last name of a path such as `dataset.transform.scale`."""
    return path.rpartition(".")[2]


def changed_paths(loader: WatchedLoader, *, same_length: bool = False, by_loading: bool = False) -> list[str]:
    """The paths in the dataset whose value differs between two epochs, in the program or in the same worker.

    by_loading: with workers, leave out what the program may have changed between the epochs.
    """
    found: dict[str, None] = {}
    for before, after in itertools.pairwise(loader.epochs):
        pairs = [] if by_loading and loader.workers else [(before.hashes, after.hashes)]
        if not by_loading or loader.description.persistent:
            pairs += [(hashes, after.worker_hashes.get(worker, {})) for worker, hashes in before.worker_hashes.items()]
        pairs += [(before.worker_hashes.get(worker, {}), left) for worker, left in before.worker_end_hashes.items()]
        for old, new in pairs:
            for path, value in old.items():
                now = new.get(path, value)
                kept = value.partition(":")[0] == now.partition(":")[0] or ":" not in value
                if value not in (now, "nothing") and (kept or not same_length):
                    found[path] = None
    return list(found)


def seeded_between(watched: ProgramFacts, loader: WatchedLoader) -> SeedCall | None:
    """The last recorded call that seeded a global generator between two epochs of a loader."""
    seeds = [
        one for process in watched.processes for one in process.seed_calls if one.pid == loader.pid and one.worker < 0
    ]
    began = [epoch.began for epoch in loader.epochs]
    between = [one for one in seeds for early, late in itertools.pairwise(began) if early < one.at < late]
    return between[-1] if between else None


def stream_split(loader: WatchedLoader) -> tuple[str, Place | None, str]:
    """Where each worker of a stream selects its share: what to name as the culprit, the line, and the evidence."""
    place = share_taken_at(loader.home, loader.description.base or loader.description.dataset)
    culprit = f"{loader.description.dataset}.__iter__" + (f" at {place}" if place is not None else "")
    evidence = f"each worker selects its share at {quoted(place)}" if place is not None else ""
    return culprit, place or loader.home or loader.made, evidence
