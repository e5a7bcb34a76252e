"""Several ranks train on the same samples.

What happened: the processes of one training run load the same samples in each epoch.

Why: nothing divides the data between the ranks: no `DistributedSampler`, a rank that was not
passed on, or a stream that is divided only between workers. All ranks then do the same work.

How to confirm: print the rank and the index of the first samples.

How to fix: use `DistributedSampler(dataset)` for a dataset with indices; for a stream, take share
number `rank * workers + worker` of `ranks * workers`.

Limits: an evaluation that every rank runs over all data is not reported. Streams are compared by
the content of the examined samples.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import OBSERVED, SUGGESTED, Severity
from unjam.doctor.queries.loaders import draws_random_numbers, trainers
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ519", "ranks-share-samples")
# a sampler repeats a few samples so that all ranks have the same number
MOST_SHARED = 0.3


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare what the ranks' training loaders drew in their first epoch."""
    training = {id(one) for one in trainers(watched)}
    for loaders in watched.siblings():
        if not all(id(one) in training for one in loaders):
            continue
        for one, other in itertools.pairwise(loaders):
            share, words = _shared(one, other)
            if share > MOST_SHARED:
                return _finding(watched, one, other, share, words)
    return _padded(watched)


def _padded(watched: ProgramFacts) -> Finding | None:
    """Find an evaluation whose sampler repeats samples on a second rank, so that all ranks have the same number."""
    for loaders in watched.siblings():
        first, length = loaders[0], loaders[0].description.length or 0
        drawn = sum(one.epochs[0].draws for one in loaders if one.epochs)
        extra = drawn - length
        if first.description.sampler != "DistributedSampler" or not 0 < extra < len(loaders) or not length:
            continue
        if any(one.trains or any(epoch.grad for epoch in one.epochs) for one in loaders):
            continue
        return Finding(
            RULE,
            f"DistributedSampler repeats {count(extra, 'sample')} of {first.name} on a second rank: gathered results contain them twice",
            f"DistributedSampler of {first.name}",
            (
                f"{length:,} samples over {count(len(loaders), 'rank')}: {drawn:,} are drawn, so that all ranks have the same number",
            ),
            SUGGESTED,
            f"truncate the gathered results to {length:,} samples, or evaluate with shares of different lengths (range(rank, n, ranks))",
            first.made or first.place,
            severity=Severity.NOTE,
        )
    return None


def _shared(one: WatchedLoader, other: WatchedLoader) -> tuple[float, str]:
    """Return the share of a rank's first epoch that another rank also loads, and that share in words."""
    if one.description.replacement:
        return 0.0, ""
    what = "indices"
    drawn, drawn_by_other = (set(loader.base_indices(loader.epochs[0])) for loader in (one, other))
    if one.iterable and one.epochs[0].signatures:
        # everything the workers of a rank delivered: the same content means the same samples, whatever else is drawn
        drawn, drawn_by_other = (set().union(*loader.epochs[0].signatures.values()) for loader in (one, other))
        return (
            len(drawn & drawn_by_other) / min(len(drawn), len(drawn_by_other)) if drawn and drawn_by_other else 0.0
        ), f"{len(drawn & drawn_by_other)} of {len(drawn)} samples"
    # a stream has no indices; and datasets of different files may have the same ones
    if one.iterable or one.description.items != other.description.items or not one.description.items:
        samples = [{s.digest for s in loader.epochs[0].samples} for loader in (one, other)]
        if one.iterable and draws_random_numbers(one):
            return 0.0, ""  # the content does not identify the sample
        if not draws_random_numbers(one):
            drawn, drawn_by_other, what = samples[0], samples[1], "examined samples"
    both = drawn & drawn_by_other
    if len(drawn) < 4 or len(drawn_by_other) < 4:
        return 0.0, ""
    return len(both) / min(len(drawn), len(drawn_by_other)), f"{len(both)} of {len(drawn)} {what}"


def _finding(watched: ProgramFacts, one: WatchedLoader, other: WatchedLoader, share: float, words: str) -> Finding:
    ranks = [watched.rank_of(loader) for loader in (one, other)]
    who = " and ".join(
        f"rank {r}" if r is not None else f"process {p}" for r, p in zip(ranks, (one.pid, other.pid), strict=True)
    )
    early = next(
        (at for process in watched.processes if process.pid == one.pid for at in process.early_rank_reads), None
    )
    if early is not None and one.iterable:
        return _too_early(one, early, f"{who} train on the same samples: {words} of the first epoch of {one.name}")
    sampler = one.description.sampler
    culprit = f"{sampler} of {one.name}" if not one.iterable else f"{one.description.dataset}.__iter__"
    return Finding(
        RULE,
        f"{who} train on the same samples: {words} of the first epoch of {one.name}",
        culprit,
        (
            f"{who}: {words} are the same ({share:.0%})",
            f"sampler: {sampler}" if not one.iterable else "the stream is not divided between ranks",
            f"{count(len(watched.processes), 'process', 'processes')} were watched",
        ),
        OBSERVED,
        "use sampler=DistributedSampler(dataset, num_replicas=..., rank=...) instead of shuffle=True, and call its set_epoch in each epoch"
        if not one.iterable
        else "let each worker take share number rank * workers + worker of ranks * workers",
        (one.home if one.iterable else None) or one.made or one.place,
    )


def _too_early(loader: WatchedLoader, place: Place, title: str) -> Finding:
    """Report a stream that asked for its rank before the process group was initialised."""
    return Finding(
        RULE,
        title,
        f"{line_of(place)} at {place}",
        (
            f"the rank is read at {quoted(place)}, before init_process_group: the result is that of a single process",
            f"{loader.name} divides its stream by that result",
        ),
        OBSERVED,
        "create the dataset after init_process_group, or read the rank in __iter__",
        place,
    )
