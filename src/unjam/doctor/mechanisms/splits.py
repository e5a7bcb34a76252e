"""Coverage over ranks: each rank cut the data into another training part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.facts.watched import WatchedLoader
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import OBSERVED

# calls that choose samples by random numbers
CHOOSE = ("random_split", "shuffle", "permutation", "randperm", "sample", "choice", "choices", "train_test_split")


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksSplitDifferently(Explanation):
    """ranks: those that were compared. common, each, union: numbers of samples."""

    ranks: str
    loader: str
    common: int
    each: int
    union: int


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Compare the parts of one dataset that the ranks of a job train on."""
    for loaders in known.watched.siblings():
        first, second = loaders[0], loaders[1]
        one, two = _part(first), _part(second)
        if not one or not two or first.facts.get("base_length") != second.facts.get("base_length"):
            continue
        common = len(one & two)
        # equal parts are one split; parts with nothing in common are shares of the ranks
        if one == two or common < 0.1 * min(len(one), len(two)) or abs(len(one) - len(two)) > 0.1 * len(one):
            continue
        yield _explanation(known, first, second, common)
        return


def _part(loader: WatchedLoader) -> set[object]:
    return set(loader.facts.get("subset") or ())


def _explanation(known: Knowledge, first: WatchedLoader, second: WatchedLoader, common: int) -> RanksSplitDifferently:
    files = [one.file for one in (first.made, first.place) if one is not None]
    split = next((at for file in dict.fromkeys(files) for at in attribute_calls(file, CHOOSE)), None)
    ranks = [known.watched.rank_of(one) for one in (first, second)]
    who = " and ".join(f"rank {rank}" if rank is not None else "a process" for rank in ranks)
    each, union = len(_part(first)), len(_part(first) | _part(second))
    return RanksSplitDifferently(
        culprit=f"{quoted(split).partition(': ')[2] or 'the split'} at {split}"
        if split
        else f"the split of {first.name}",
        place=split or first.made,
        because=(
            f"{who} train on {count(each, 'sample')} each, of which {common:,} are the same; together they use {union:,}",
            *((f"chosen at {quoted(split)}",) if split else ()),
            "what one rank keeps for validation, another one trains on",
        ),
        basis=OBSERVED,
        ranks=who,
        loader=first.name,
        common=common,
        each=each,
        union=union,
        accounts_for=("ranks",),
    )
