"""A worker draws the same random numbers in every epoch.

What happened: a worker starts the second epoch with a generator in the same state as at the start
of the first: every epoch applies the same augmentations.

Why: without `persistent_workers` every epoch creates new workers from the program's own dataset,
whose generator never advances; or `worker_init_fn` uses only the worker's number as seed.

How to confirm: the state at the first sample is the same in two epochs.

How to fix: derive the seed from `torch.initial_seed()`, which changes with every epoch.

Limits: two epochs are compared.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls, function_at
from unjam.doctor.facts.trial import Place, Trial
from unjam.doctor.proof import OBSERVED, Toggle
from unjam.doctor.queries.loaders import by_index, same_training, seeded_between, trainers
from unjam.doctor.rules.rule import Finding, Rule, case_of, line_evidence
from unjam.doctor.rules.uj505_same_random_numbers import GLOBAL, repeated, seeded_in_worker

RULE = Rule("UJ506", "random-repeats-each-epoch", symptom="repeats")
ENOUGH = 12
SEEDS = ("manual_seed", "seed", "seed_everything", "set_seed")


def detect(case: Case) -> Finding | None:
    """Find a generator that has the same state at the start of two epochs."""
    trial = case.compared
    reported = {name for name, _ in repeated(trial)}  # by UJ505
    alike = [name for name in again(trial) if name not in reported]
    if trial is None or not alike:
        return None
    name = alike[0]
    part, own, init = case.part(name), name not in GLOBAL, case.loader.worker_init
    plan = trial.plan.changed(reseed=True) if own else trial.plan.changed(plain=True)
    return Finding(
        RULE,
        f"every epoch draws the same random numbers from {name}",
        name if own else f"{init or 'worker_init_fn'} (seeds {name})",
        (
            f"{name} is in the same state at the first sample of two epochs, and the samples draw from it",
            *line_evidence("created at", part.place if part else None),
        ),
        Toggle(trial.plan, (plan,), lambda _, other: name not in again(other), OBSERVED) if own or init else OBSERVED,
        f"create {name} in the worker: {seeded_in_worker(part.type_name if part else '')}; the seed changes with every epoch"
        if own
        else f"in {init or 'worker_init_fn'} derive the seed from torch.initial_seed(), which changes with every epoch",
        (part.place if part else None) or (None if own else case.loader.worker_init_place) or case.loader.dataset_place,
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find samples that draw random numbers and are the same in two training epochs."""
    for loader in trainers(watched):
        for before, after in itertools.pairwise(loader.epochs):
            if not same_training(before, after):
                continue
            old, new = by_index(before), by_index(after)
            both = [(old[i], new[i]) for i in old if i in new and old[i].drew and new[i].drew]
            same = [a for a, b in both if a.digest == b.digest]
            if len(both) < ENOUGH or len(same) < 0.98 * len(both):
                continue
            drawn = sorted({name for sample in same for name in sample.drew})
            case = case_of(cases, loader)
            recorded = seeded_between(watched, loader)
            seeds = [recorded.place] if recorded else _seeds(loader, case, again=before.seed == after.seed)
            return Finding(
                RULE,
                f"every epoch of {loader.name} draws the same random numbers: sample {same[0].index} never changes",
                drawn[0],
                (
                    f"{len(same)} of {len(both)} samples that draw from {', '.join(drawn)} are the same in two epochs",
                    f"seeded at {quoted(seeds[0])}" if seeds else "",
                ),
                OBSERVED,
                "seed once, before the first epoch; a seed derived from the index must also include the epoch",
                seeds[0] if seeds else loader.place or loader.made,
            )
    return None


def _seeds(loader: WatchedLoader, case: Case | None, *, again: bool) -> list[Place]:
    """List the lines that seed: around the loop if torch's own seed repeats, otherwise in the dataset."""
    home = case.loader.dataset_place if case is not None else None
    outer = [place.file for place in (loader.place, loader.made) if place is not None]
    files = outer if again or home is None else [home.file, *outer]
    found = [place for file in dict.fromkeys(files) for place in attribute_calls(file, SEEDS)]
    around = function_at(loader.place) if again else ""
    return sorted(
        found, key=lambda place: (function_at(place) != around) if again else function_at(place) in ("", "__init__")
    )


def again(trial: Trial | None) -> list[str]:
    """List generators that are in the same state when a worker starts its first two epochs."""
    if trial is None:
        return []
    drawn = {name for sample in trial.samples for name in sample.drew}
    return sorted(
        {
            name
            for (worker, epoch, name), state in trial.states.items()
            if epoch == 0 and worker >= 0 and name in drawn and trial.states.get((worker, 1, name)) == state
        }
    )
