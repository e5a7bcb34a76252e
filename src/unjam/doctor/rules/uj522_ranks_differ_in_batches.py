"""Ranks have different numbers of batches.

What happened: one rank has finished an epoch while another one still has batches.

Why: the data is divided by hand, without giving every rank the same number; or a stream yields
fewer samples on one rank. With collective operations in the loop, the rank with more batches
waits forever.

How to confirm: print `len(loader)`, or count the batches, on every rank.

How to fix: use `DistributedSampler`, which repeats samples, or `drop_last=True`, which drops them;
for streams, use the same number of steps on all ranks, or `torch.distributed.algorithms.Join`.

Limits: only watched epochs are compared. A program that ended normally is not reported, because no
rank waited.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ522", "ranks-differ-in-batches", symptom="frozen")


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the number of batches of each epoch between the ranks."""
    frozen = watched.outcome == "frozen" or any("distributed" in one.trace for one in watched.failures)
    frozen = frozen or any(
        one.kind == "process" for one in watched.ended_by_exception
    )  # a rank ended and closed its connections
    if watched.outcome == "ended" and not frozen:
        return None  # no rank waited: there was no collective operation, or the program uses `Join`
    training = {id(one) for one in trainers(watched)}
    for loaders in watched.siblings():
        if any(id(one) not in training for one in loaders):
            continue
        fewest = min((one.epochs[0].batches for one in loaders if one.epochs[0].done), default=1 << 60)
        numbers = [_batches(one, fewest) for one in loaders]
        if any(number is None for number in numbers) or len(set(numbers)) == 1:
            continue
        listed = ", ".join(
            f"rank {watched.rank_of(one)}: {number}"
            if watched.rank_of(one) is not None
            else f"process {one.pid}: {number}"
            for one, number in zip(loaders, numbers, strict=True)
        )
        if watched.outcome == "stopped" and any(
            next(attribute_calls(file, ("Join",)), None) for file in _files(loaders)
        ):
            continue
        first = loaders[0]
        return Finding(
            RULE,
            f"the ranks have different numbers of batches of {first.name}: {listed}",
            f"{first.description.sampler} of {first.name}"
            if not first.iterable
            else f"{first.description.dataset}.__iter__",
            (
                f"batches of one epoch: {listed}",
                "the rank with more batches waits for the others in a collective operation" if frozen else "",
            ),
            OBSERVED if frozen else AGREES,
            "give every rank the same number: DistributedSampler, drop_last=True, or a fixed number of steps for all ranks",
            first.made or first.place,
        )
    return None


def _files(loaders: list[WatchedLoader]) -> list[str]:
    """List the source files around the loops of a loader."""
    return sorted({place.file for one in loaders for place in (one.place, one.made) if place is not None})


def _batches(loader: WatchedLoader, most: int) -> int | None:
    """Return the number of batches of the first epoch; None if it is unfinished and has at most `most` batches so far."""
    epoch = loader.epochs[0]
    if epoch.done or epoch.expected is not None:
        return epoch.batches if epoch.done else epoch.expected
    return epoch.batches if epoch.batches > most else None
