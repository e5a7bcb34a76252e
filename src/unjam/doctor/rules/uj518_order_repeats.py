"""Every epoch has the same order, although the sampler shuffles.

What happened: two passes over the training data had exactly the same order.

Why: something sets the generator back before each pass: `manual_seed` in the epoch's loop, a new
generator with a fixed seed for each loader, or a sampler that makes its generator anew in
`__iter__`. The model sees the same batches in the same order again and again.

How to confirm: print the first indices of two epochs.

How to fix: seed once, before the first epoch; in a sampler of your own, add the epoch to the seed.

Limits: only passes that reached their end are compared. An order that is meant to repeat, such as
that of an evaluation, is not reported.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls, function_at
from unjam.doctor.mechanisms.loaders import consecutive, draws_random_numbers, same_training, seeded_between, trainers
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ518", "order-repeats", Severity.WARNING, fallback=True, symptom="repeats")
# the same, where the line that repeats is known
KNOWN = replace(RULE, fallback=False)
FEWEST = 6
SEEDS = (
    "manual_seed",
    "seed",
    "seed_everything",
    "set_seed",
    "manual_seed_all",
    "Random",
    "default_rng",
    "RandomState",
)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find a shuffled loader with the same order in two epochs, or loaders made anew with one order."""
    cycled = [one for case in cases if (one := _cycled(case)) is not None]
    if cycled:
        return cycled[:1]
    found = []
    for loader in trainers(watched):
        if not loader.description.random or loader.description.set_epoch:
            continue
        same = [(a, b) for a, b in consecutive(loader) if a.order == b.order and _shuffled(a.indices)]
        if same:
            found.append(_finding(watched, loader, len(same) + 1))
    if not found:
        found += _remade(watched)
    return found[:1]


def _cycled(case: Case) -> Finding | None:
    """A loader that itertools.cycle keeps and repeats."""
    place, loader = case.reading.cycled_at, case.watched_loader
    if place is None or loader is None or not (loader.description.random or draws_random_numbers(loader)):
        return None
    return Finding(
        KNOWN,
        f"itertools.cycle repeats the first pass over {loader.name}: the same batches in the same order, all kept in memory",
        f"{quoted(place).partition(': ')[2]} at {place}",
        (
            f"made at {quoted(place)}",
            "cycle stores what it has seen and gives it again: the loader is never iterated a second time",
        ),
        AGREES,
        "iterate the loader anew for each pass: def endless(loader): while True: yield from loader",
        place,
    )


def _remade(watched: ProgramFacts) -> list[Finding]:
    """Loaders that one line makes for each epoch, all with the same order."""
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
            return [_finding(watched, loaders[0], len(loaders))]
    return []


def _shuffled(indices: list[Any]) -> bool:
    numbers = [one for one in indices if isinstance(one, int)]
    return len(numbers) >= FEWEST and numbers != sorted(numbers) and numbers != sorted(numbers, reverse=True)


def _finding(watched: ProgramFacts, loader: WatchedLoader, passes: int) -> Finding:
    epoch = loader.complete_epochs[0]
    file = loader.description.sampler_file
    at = loader.place or loader.made
    files = [file] if file else [place.file for place in (loader.place, loader.made) if place is not None]
    seeds = [place for one in dict.fromkeys(files) for place in attribute_calls(one, SEEDS)]
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
            f"the indices of every pass begin with {', '.join(map(str, epoch.indices[:6]))}",
            *(
                (
                    f"{recorded.what if recorded else 'a generator'} is seeded at {quoted(seed)}"
                    + (", between two passes" if recorded else ""),
                )
                if seed
                else ()
            ),
        ),
        OBSERVED,
        (
            f"do not seed between epochs (at {seed}): use a torch.Generator of its own there"
            if recorded
            else "seed once, before the first epoch"
        )
        if not file
        else f"make {sampler} add the number of the epoch to its seed",
        seed or at,
    )
