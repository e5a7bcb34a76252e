"""Training and validation share samples.

What happened: samples that validate the model are also used to train it.

Why: the split is wrong: two random splits instead of one, a slice that begins too early, indices of
one list used in another one.

How to confirm: intersect the indices, or the file names, of the two datasets.

How to fix: split once, keep both parts, and check that they have nothing in common.

Limits: the comparison covers indices of a dataset that both use, or the lists that two datasets
hold (file names, rows). It does not detect that two different files show the same patient. A pass
over the whole training set without training is not reported.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.mechanisms.splits import RanksOrderDifferently, RanksSplitDifferently
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.loaders import evaluators, trainers
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ521", "split-overlaps", replaces=("UJ519",))


def words(one: RanksSplitDifferently | RanksOrderDifferently) -> Words:
    """Say that the ranks have different splits, or different orders."""
    if isinstance(one, RanksOrderDifferently):
        return Words(
            f"{one.ranks} hold {one.items} in different orders: their shares of {one.loader} overlap and leave samples out",
            f"give {one.items} the same order on every rank: sort it, or shuffle it with random.Random(a shared seed)",
        )
    return Words(
        f"{one.ranks} split the data differently: of {one.each:,} training samples each, only {one.common:,} are the same",
        "split with a generator that has the same seed on every rank: random_split(..., generator=torch.Generator().manual_seed(0))",
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare each evaluation loader with the training that preceded it."""
    for loader in evaluators(watched):
        before = [
            one for one in trainers(watched) if one.pid == loader.pid and one.epochs[0].began < loader.epochs[0].began
        ]
        if not before or loader.iterable:
            continue
        train = max(before, key=lambda one: one.epochs[0].began)
        finding = _compared(train, loader, apart=_has_another(watched, train, loader))
        if finding is not None:
            return finding
    return None


def _compared(train: WatchedLoader, other: WatchedLoader, *, apart: bool) -> Finding | None:
    if train.iterable:
        return None
    train_token, other_token = train.description.tokens.get("base"), other.description.tokens.get("base")
    if (train_token is not None and train_token == other_token) or _same_rows(train, other):
        drawn = {index for epoch in train.epochs for index in train.base_indices(epoch)}
        checked = {index for epoch in other.epochs for index in other.base_indices(epoch)}
        what, shown = "indices", sorted(drawn & checked, key=str)
    elif not _same_home(train, other):
        return None
    else:
        # an item that occurs more than once in one part may also occur in the other
        both = [
            name
            for name, items in train.description.items.items()
            if name in other.description.items
            and all(len(set(one)) == len(one) for one in (items, other.description.items[name]))
        ]
        if not both:
            return None
        name = min(both, key=lambda one: len(_items_of(train, one) & _items_of(other, one)))
        drawn = _items_of(train, name)
        checked = _items_of(other, name)
        at = {value: place for place, value in enumerate(other.description.items[name])}
        what, shown = f"items of {name}", sorted((at[one] for one in drawn & checked), key=str)
    common = drawn & checked
    if not common:
        return None
    whole = len(drawn) >= int(train.description.base_length or 0)
    same = train_token is not None and train_token == other_token and what == "indices"
    if (checked == drawn and (whole or apart)) or (same and len(checked) >= int(other.description.base_length or 0)):
        return None  # intended: it measures how well the training set is learnt
    split, its_split = (one.description.composed.get("dataset") for one in (train, other))
    return Finding(
        RULE,
        f"{len(common):,} of the {len(checked):,} samples of {other.name} are also used for training by {train.name}",
        f"{line_of(its_split)} at {its_split}" if its_split is not None else f"{other.name}",
        (
            *line_evidence("the evaluation part is created at", its_split),
            f"the training part is created at {quoted(split)}" if split not in (None, its_split) else "",
            f"common {what}: {names(map(str, shown))}",
            f"training draws {len(drawn):,}, evaluation {len(checked):,}",
        ),
        OBSERVED,
        "split once and use the two parts, or give both splits a generator with the same seed: "
        "random_split(..., generator=torch.Generator().manual_seed(0))"
        if split is not None and its_split is not None and split != its_split
        else "split once, so that the two parts have nothing in common, and use these parts for both loaders",
        its_split or other.made or other.place,
    )


def _same_rows(train: WatchedLoader, other: WatchedLoader) -> bool:
    """Whether two datasets of a class hold the same rows."""
    one, two = train.description, other.description
    same = (one.base, one.base_length) == (two.base, two.base_length)
    rows = [path for path in one.rows if path in two.rows]
    train_hashes, other_hashes = train.epochs[0].hashes, other.epochs[0].hashes
    return same and bool(rows) and all(train_hashes.get(path) == other_hashes.get(path) is not None for path in rows)


def _same_home(train: WatchedLoader, other: WatchedLoader) -> bool:
    """Whether two datasets take their items from the same folder, without which a file name means nothing."""
    train_hashes, other_hashes = train.epochs[0].hashes, other.epochs[0].hashes
    rows = {*train.description.rows, *other.description.rows}
    plain = [
        path
        for path in train_hashes
        if path.startswith("dataset.") and path in other_hashes and path not in rows and ":" not in train_hashes[path]
    ]
    return all(
        train_hashes[path] == other_hashes[path] for path in plain if not train_hashes[path].startswith("object ")
    )


def _has_another(watched: ProgramFacts, train: WatchedLoader, loader: WatchedLoader) -> bool:
    """Whether the program also evaluates with samples that it does not train on."""
    drawn = {index for epoch in train.epochs for index in train.base_indices(epoch)}
    others = [one for one in evaluators(watched) if one is not loader and one.pid == loader.pid]
    return any(not drawn & set(one.base_indices(epoch)) for one in others for epoch in one.epochs)


def _items_of(loader: WatchedLoader, name: str) -> set[Any]:
    items = loader.description.items[name]
    used = {index for epoch in loader.epochs for index in loader.base_indices(epoch)}
    return {items[index] for index in used if isinstance(index, int) and -len(items) <= index < len(items)}
