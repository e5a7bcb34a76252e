"""Every epoch has the same order, although the sampler shuffles.

What happened: two epochs of the training had exactly the same order.

Why: something resets the generator before each epoch: `manual_seed` in the loop over epochs, a new
generator with a fixed seed for each loader, or a sampler that creates its generator in `__iter__`.
The model sees the same batches in the same order in every epoch.

How to confirm: print the first indices of two epochs.

How to fix: seed once, before the first epoch; in your own sampler, add the epoch to the seed.

Limits: only complete epochs are compared. An order that is meant to repeat, such as that of an
evaluation, is not reported.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.source_places import attribute_calls, function_at
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.queries.loaders import consecutive, draws_random_numbers, same_training, seeded_between, trainers
from unjam.doctor.rules.rule import Finding, Rule
from unjam.doctor.rules.uj506_random_repeats_each_epoch import SEEDS

RULE = Rule("UJ518", "order-repeats", Severity.WARNING, fallback=True, symptom="repeats")
# the same rule, if the line that repeats the order is known
KNOWN = replace(RULE, fallback=False)
FEWEST = 6
MAKERS = (*SEEDS, "manual_seed_all", "Random", "default_rng", "RandomState")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a shuffled loader with the same order in two epochs, or loaders created for each epoch with the same order."""
    cycled = next((one for case in cases if (one := _cycled(case)) is not None), None)
    if cycled is not None:
        return cycled
    for loader in trainers(watched):
        if not loader.description.random or loader.description.set_epoch:
            continue
        same = [(a, b) for a, b in consecutive(loader) if a.order == b.order and _shuffled(a.indices)]
        if same:
            return _finding(watched, loader, len(same) + 1)
    return _remade(watched)


def _cycled(case: Case) -> Finding | None:
    """Find a loader whose first epoch itertools.cycle repeats."""
    place, loader = case.reading.cycled_at, case.watched_loader
    if place is None or loader is None or not (loader.description.random or draws_random_numbers(loader)):
        return None
    return Finding(
        KNOWN,
        f"itertools.cycle repeats the first epoch of {loader.name}: the same batches in the same order, all kept in memory",
        f"{line_of(place)} at {place}",
        (
            f"created at {quoted(place)}",
            "cycle stores the batches and repeats them: the loader is never iterated a second time",
        ),
        AGREES,
        "iterate the loader again for each epoch: def endless(loader): while True: yield from loader",
        place,
    )


def _remade(watched: ProgramFacts) -> Finding | None:
    """Find loaders that one line creates for each epoch, all with the same order."""
    by_line: dict[Any, list[WatchedLoader]] = {}
    for loader in trainers(watched):
        if loader.description.random and loader.complete_epochs and loader.made is not None:
            by_line.setdefault(
                (loader.pid, loader.made, loader.description.length, loader.description.dataset), []
            ).append(loader)
    for loaders in by_line.values():
        orders = {one.complete_epochs[0].order for one in loaders}
        if not all(same_training(a.complete_epochs[0], b.complete_epochs[0]) for a, b in itertools.pairwise(loaders)):
            continue
        apart = all(a.epochs[-1].ended <= b.epochs[0].began for a, b in itertools.pairwise(loaders))
        if len(loaders) > 1 and apart and len(orders) == 1 and _shuffled(loaders[0].complete_epochs[0].indices):
            return _finding(watched, loaders[0], len(loaders))
    return None


def _shuffled(indices: list[Any]) -> bool:
    numbers = [one for one in indices if isinstance(one, int)]
    return len(numbers) >= FEWEST and numbers != sorted(numbers) and numbers != sorted(numbers, reverse=True)


def _finding(watched: ProgramFacts, loader: WatchedLoader, passes: int) -> Finding:
    epoch = loader.complete_epochs[0]
    file = loader.description.sampler_file
    at = loader.place or loader.made
    files = [file] if file else [place.file for place in (loader.place, loader.made) if place is not None]
    seeds = [place for one in dict.fromkeys(files) for place in attribute_calls(one, MAKERS)]
    around = function_at(loader.place)
    recorded = seeded_between(watched, loader)
    seed = (
        recorded.place
        if recorded is not None
        else min(seeds, key=lambda place: function_at(place) != around, default=None)
    )
    sampler = loader.description.sampler
    return Finding(
        RULE,
        f"{passes} epochs of {loader.name} have exactly the same order, although {sampler} shuffles",
        f"{recorded.what} at {seed}" if recorded else f"{sampler} of {loader.name}",
        (
            f"the indices of every epoch begin with {', '.join(map(str, epoch.indices[:6]))}",
            f"{recorded.what if recorded else 'a generator'} is seeded at {quoted(seed)}"
            + (", between two epochs" if recorded else "")
            if seed
            else "",
        ),
        OBSERVED,
        (
            f"do not seed between epochs (at {seed}): use a separate torch.Generator there"
            if recorded
            else "seed once, before the first epoch"
        )
        if not file
        else f"let {sampler} add the epoch number to its seed",
        seed or at,
    )
