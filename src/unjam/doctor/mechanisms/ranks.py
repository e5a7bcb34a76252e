"""Ranks: one rank of a job skips a collective operation that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedLoader
from unjam.doctor.facts.source import leaves_loop_early, line_of, quoted
from unjam.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSkippedSteps(Explanation):
    """A rank took batches without a training step, and the other ranks waited for those steps. skipped: how many."""

    rank: str
    skipped: int
    loader: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Compare the batches and the optimizer steps of the ranks of a job that froze or failed."""
    watched = known.watched
    if watched.outcome not in ("frozen", "failed"):
        return
    for loaders in watched.siblings():
        missing = {one.pid: _skipped(one) for one in loaders}
        first = max(loaders, key=lambda one: missing[one.pid])
        same = len(set(missing.values())) < 2
        # if all ranks skipped equally many, they may still have skipped different ones: then a condition on the batch decides
        place = leaves_loop_early(first.place, by_batch=same)
        if not any(one.trains for one in loaders):
            continue
        if missing[first.pid] < 1 or place is None:
            continue
        rank = watched.rank_of(first)
        who = f"rank {rank}" if rank is not None else f"process {first.pid}"
        yield RankSkippedSteps(
            culprit=f"{line_of(place)} at {place}",
            place=place,
            because=(
                *(_rank_words(watched.rank_of(one), one) for one in loaders),
                f"the loop skips to the next batch at {quoted(place)}",
                "backward() on one rank waits until every other rank calls it too",
            ),
            rank=who,
            skipped=missing[first.pid],
            loader=first.name,
            accounts_for=("frozen", "ranks"),
        )
        return


def _skipped(loader: WatchedLoader) -> int:
    """The batches that were taken without a step; the step of the last one may not be finished."""
    batches, steps = sum(epoch.batches for epoch in loader.epochs), sum(epoch.steps for epoch in loader.epochs)
    return max(0, batches - 1 - steps)


def _rank_words(rank: int | None, loader: WatchedLoader) -> str:
    batches, steps = sum(epoch.batches for epoch in loader.epochs), sum(epoch.steps for epoch in loader.epochs)
    return f"rank {rank}: {count(batches, 'batch', 'batches')}, {count(steps, 'optimizer step')}"
