"""The sampler never draws some samples.

What happened: the sampler leaves out the same samples in every epoch, or draws indices that the
dataset does not have.

Why: an arithmetic error in your own sampler (a bound, a step, a remainder that is dropped), or a
sampler that was created for a dataset of another length.

How to confirm: compare `set(sampler)` with `range(len(dataset))`.

How to fix: let the sampler derive its bounds from `len(dataset)`.

Limits: needs two complete epochs. Samples that another loader of the program draws are not counted,
and samplers that draw with replacement are not examined.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source_places import class_line
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ525", "samples-never-drawn", Severity.WARNING)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the indices that a loader drew in all its epochs with those of its dataset."""
    for loader in trainers(watched):
        known, whole = loader.description, loader.complete_epochs
        length = known.length
        if loader.iterable or not length or known.replacement or known.set_epoch or len(whole) < 2:
            continue
        drawn = [set(epoch.indices) for epoch in whole]
        if any(len(epoch.indices) < epoch.draws for epoch in whole):
            continue  # the epoch drew more indices than are recorded
        missing = set(range(length)) - set.union(*drawn)
        if not missing or (whole[0].draws < ALMOST * length and not _is_block(missing)):
            continue  # each epoch draws a different part of the samples
        dropped = known.drop_last and len(missing) < int(known.batch_size or 1)
        if dropped or _is_drawn_elsewhere(watched, loader, missing) or not _of_the_user(loader):
            continue
        place = class_line(known.sampler_file, known.sampler)
        return Finding(
            RULE,
            f"{known.sampler} never draws {count(len(missing), 'sample')} of {length:,}: {names(map(str, sorted(missing)), 4)}",
            known.sampler,
            (
                f"{count(len(whole), 'complete epoch')} of {loader.name} drew {len(set.union(*drawn)):,} different indices of {length:,}",
                f"an epoch draws {whole[0].draws:,} indices",
            ),
            AGREES,
            f"let {known.sampler} cover range(len(dataset))",
            place or loader.made or loader.place,
        )
    return None


ALMOST = 0.9


def _is_block(missing: set[int]) -> bool:
    """Whether the samples that are never drawn are adjacent: the end of the dataset, for example."""
    return max(missing) - min(missing) + 1 == len(missing)


def _of_the_user(loader: WatchedLoader) -> bool:
    """Whether the program itself decides what is drawn: with its own sampler, or one of another length."""
    return bool(loader.description.sampler_file) or (
        loader.description.sampler in ("RandomSampler", "SequentialSampler", "DistributedSampler")
        and loader.description.draws != loader.description.length
    )


def _is_drawn_elsewhere(watched: ProgramFacts, loader: WatchedLoader, missing: set[int]) -> bool:
    """Whether other loaders over the same dataset draw what this one leaves out."""
    token = loader.description.tokens.get("dataset")
    others: set[Any] = set()
    for other in watched.loaders:
        same = other.pid != loader.pid or other.description.tokens.get("dataset") == token
        if other is not loader and same and other.description.length == loader.description.length:
            others |= {index for epoch in other.epochs for index in epoch.indices}
    return len(missing - others) < 0.5 * len(missing)
