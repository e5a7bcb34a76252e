"""Several workers draw the same random numbers.

What happened: two or more workers start with a generator in the same state, and their samples use
it: the augmentations of one worker repeat those of another.

Why: a generator object in the dataset (`numpy.random.default_rng()`, `random.Random()`,
`torch.Generator()`) is copied into each worker with its state; or `worker_init_fn` gives every
worker the same seed. The global generators of random, numpy and torch are not affected: torch seeds
them differently in every worker.

How to confirm: the states at the first sample are equal; when every worker gets its own seed they
differ.

How to fix: create the generator in the worker from `torch.initial_seed()`, which differs for every
worker and epoch; in `worker_init_fn` add the worker's number and the epoch to the seed.

Limits: generators whose library does not expose their state are not examined.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Trial
from unjam.doctor.proof import OBSERVED, Toggle
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ505", "same-random-numbers")
GLOBAL = ("random", "numpy.random", "torch")


def detect(case: Case) -> Finding | None:
    """Find a generator that samples use and that has the same state in several workers."""
    trial = case.compared
    alike = repeated(trial)
    if trial is None or not alike:
        return None
    name, workers = alike[0]
    part = case.part(name)
    own = name not in GLOBAL
    plan = trial.plan.changed(reseed=True) if own else trial.plan.changed(plain=True)
    init = case.loader.worker_init
    culprit = name if own else f"{init or 'worker_init_fn'} (seeds {name})"
    return Finding(
        RULE,
        f"workers {', '.join(map(str, workers))} draw the same random numbers from {name}",
        culprit,
        (
            f"{name} is in the same state at the first sample of {len(workers)} workers, which draw from it",
            *line_evidence("created at", part.place if part else None),
            f"also: {', '.join(other for other, _ in alike[1:])}" if len(alike) > 1 else "",
        ),
        Toggle(trial.plan, (plan,), lambda _, other: name not in dict(repeated(other)), OBSERVED)
        if own or init
        else OBSERVED,
        f"create {name} in the worker, for example on first use: {seeded_in_worker(part.type_name if part else '')}"
        if own
        else f"in {init or 'worker_init_fn'} derive the seed from torch.initial_seed(), or remove the call: torch seeds {name} itself",
        (part.place if part else None) or (None if own else case.loader.worker_init_place) or case.loader.dataset_place,
    )


def seeded_in_worker(type_name: str) -> str:
    """Return code that creates a generator of the same kind with the worker's own seed."""
    if type_name.startswith("torch"):
        return "torch.Generator().manual_seed(torch.initial_seed())"
    if type_name.startswith("random"):
        return "random.Random(torch.initial_seed())"
    if type_name.endswith("RandomState"):
        return "numpy.random.RandomState(torch.initial_seed() % 2**32)"
    return "numpy.random.default_rng(torch.initial_seed())"


def repeated(trial: Trial | None) -> list[tuple[str, list[int]]]:
    """List generators that samples use and that start in the same state in several workers of epoch 0."""
    if trial is None:
        return []
    drawn = {name for sample in trial.samples for name in sample.drew} | set(trial.collate_drew)
    by_state: dict[tuple[str, str], list[int]] = {}
    for (worker, epoch, name), state in trial.states.items():
        if worker >= 0 and epoch == 0 and name in drawn:
            by_state.setdefault((name, state), []).append(worker)
    return sorted((name, sorted(workers)) for (name, _), workers in by_state.items() if len(workers) > 1)
