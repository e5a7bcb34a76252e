"""Coverage: ranks that split or order the data differently, and workers whose shares of a stream overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedLoader
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.loaders import stream_split
from unjam.units import count

# functions that choose samples at random
CHOOSE = ("random_split", "shuffle", "permutation", "randperm", "sample", "choice", "choices", "train_test_split")


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSplitDifferently(Explanation):
    """ranks: the compared ones. common, each: numbers of samples."""

    ranks: str
    common: int
    each: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOrderDifferently(Explanation):
    """The ranks hold the same items in different orders, so an index is a different sample on each. items: the container."""

    ranks: str
    items: str
    loader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSharesOverlap(Explanation):
    """Workers of a stream load samples that other workers also load. twice: samples loaded more than once; of: all."""

    loader: str
    dataset: str
    twice: int
    of: int
    whole: bool  # each worker delivered everything


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Compare the items that the ranks hold, the parts that they train on, and the samples that workers deliver."""
    yield from _orders(known)
    for loader in known.watched.loaders:
        yield from _shares(loader)
    for loaders in known.watched.siblings():
        first, second = loaders[0], loaders[1]
        one, two = _part(first), _part(second)
        if not one or not two or first.description.base_length != second.description.base_length:
            continue
        common = len(one & two)
        # equal parts: the same split; disjoint parts: each rank has its own share
        if one == two or common < 0.1 * min(len(one), len(two)) or abs(len(one) - len(two)) > 0.1 * len(one):
            continue
        yield _explanation(known, first, second, common)
        return


LEAST_OVERLAP, FEWEST = 0.05, 60


def _shares(loader: WatchedLoader) -> Iterator[Explanation]:
    """Find a complete epoch in which several workers delivered the same samples, and no worker one of them twice."""
    for epoch in loader.complete_epochs:
        by_worker = [found for worker, found in epoch.signatures.items() if worker >= 0 and found]
        delivered = sum(len(found) for found in by_worker)
        if len(by_worker) < 2 or delivered < max(FEWEST, 0.9 * epoch.loaded):
            continue
        within = delivered - sum(len(set(found)) for found in by_worker)
        across = sum(len(set(found)) for found in by_worker) - len(set().union(*by_worker))
        if across < LEAST_OVERLAP * delivered or within > 0.2 * across:
            continue
        culprit, place, split = stream_split(loader)
        yield WorkerSharesOverlap(
            culprit=culprit,
            place=place,
            because=(
                f"an epoch delivered {delivered:,} samples, of which {delivered - across - within:,} are distinct",
                "the repeated samples came from different workers: their shares overlap, so other samples are missing",
                split,
            ),
            loader=loader.name,
            dataset=loader.description.dataset,
            twice=across,
            whole=all(set(found) == set(by_worker[0]) for found in by_worker),
            of=delivered,
            accounts_for=("lost",),
        )
        return


def _part(loader: WatchedLoader) -> set[object]:
    return set(loader.description.subset or ())


def _explanation(known: Knowledge, first: WatchedLoader, second: WatchedLoader, common: int) -> RanksSplitDifferently:
    files = [one.file for one in (first.made, first.place) if one is not None]
    split = next((at for file in dict.fromkeys(files) for at in attribute_calls(file, CHOOSE)), None)
    who = _names(known, first, second)
    each, union = len(_part(first)), len(_part(first) | _part(second))
    return RanksSplitDifferently(
        culprit=f"{line_of(split) or 'the split'} at {split}" if split else f"the split of {first.name}",
        place=split or first.made,
        because=(
            f"{who} train on {count(each, 'sample')} each, of which {common:,} are the same; together they use {union:,}",
            f"chosen at {quoted(split)}" if split else "",
            "so one rank trains on samples that another keeps for validation",
        ),
        basis=OBSERVED,
        ranks=who,
        common=common,
        each=each,
        accounts_for=("ranks",),
    )


def _names(known: Knowledge, *loaders: WatchedLoader) -> str:
    ranks = map(known.watched.rank_of, loaders)
    return " and ".join(f"rank {rank}" if rank is not None else "a process" for rank in ranks)


SHUFFLES = ("shuffle", "permutation", "randperm", "sample", "listdir", "scandir", "glob", "iglob", "rglob")


def _orders(known: Knowledge) -> Iterator[Explanation]:
    """Find a container that has the same items on two ranks, but in different orders."""
    for loaders in known.watched.siblings():
        first, second = loaders[0], loaders[1]
        mine, its = first.description.records, second.description.records
        name = next(
            (one for one in mine if one in its and mine[one] != its[one] and sorted(mine[one]) == sorted(its[one])),
            None,
        )
        if name is None or first.iterable or first.description.replacement or _draws_all(first):
            continue
        files = [
            *first.description.files,
            *(one.file for one in (first.home, first.made, first.place) if one is not None),
        ]
        line = next((at for file in dict.fromkeys(files) for at in attribute_calls(file, SHUFFLES)), None)
        who = _names(known, first, second)
        yield RanksOrderDifferently(
            culprit=f"{name}, ordered at {line}" if line is not None else name,
            place=line or first.home or first.made,
            because=(
                f"{who} have the same {count(len(mine[name]), 'item')} in {name}, in different orders",
                f"ordered at {quoted(line)}" if line is not None else "",
                f"each rank draws its share of the indices of {first.name}, but the same index refers to a different sample on each rank",
            ),
            basis=OBSERVED,
            ranks=who,
            items=name,
            loader=first.name,
            accounts_for=("ranks",),
        )
        return


def _draws_all(loader: WatchedLoader) -> bool:
    """Whether a rank draws every index: then the order of the items does not matter."""
    drawn = {index for epoch in loader.epochs for index in epoch.indices}
    return len(drawn) >= int(loader.description.length or 0)
