"""Loading changes the data that the dataset holds.

What happened: the same index gives another sample in a later epoch, though nothing random is
drawn: loading a sample changes what the dataset keeps in memory.

Why: an operation in place (`+=`, `mul_`, `sort`, `pop`, `out=`) works on the stored array or list
and not on a copy. The second epoch normalises what was normalised before.

How to confirm: hash the stored data before and after an epoch.

How to fix: work on a copy: `self.data[index].clone()`, `.copy()`, `sorted(...)`.

Limits: with workers that are started anew for each epoch, the change is lost with them, and only
samples that an epoch loads twice can differ. Large arrays are compared by parts.
"""

from __future__ import annotations

import itertools
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.mechanisms.loaders import attribute_name, by_index, changed_paths, draws_random_numbers
from unjam.doctor.mechanisms.trials import count, names
from unjam.doctor.proof import AGREES
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ524", "held-data-changed", replaces=("UJ514", "UJ107"))


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find stored data that an epoch changed, and samples that differ for it."""
    for loader in watched.loaders:
        if loader.iterable:
            continue
        changed = changed_paths(loader, same_length=True, by_loading=True)
        # a counter or a setting is no data
        changed = [path for path in changed if path not in loader.description.plain and _may_hold_samples(loader, path)]
        known = next((one for one in cases if one.watched_loader is loader), None)
        if not loader.workers and known is not None:
            changed = [path for path in changed if attribute_name(path) not in known.reading.writes]
        differ = _differing(loader)
        if draws_random_numbers(loader):  # samples differ anyway: only data with an entry for each sample tells
            changed = [path for path in changed if path in loader.description.per_sample]
        if changed and differ:
            case = next((one for one in cases if one.watched_loader is loader), None)
            place = case.loader.dataset_place if case is not None else None
            return [
                Finding(
                    RULE,
                    f"loading changes {changed[0]}: sample {names(map(str, differ), 3)} of {loader.name} differs in a later epoch",
                    changed[0],
                    (
                        f"{changed[0]} has another content after an epoch",
                        f"{count(len(differ), 'sample')} changed from one epoch to the next: {names(map(str, differ))}",
                        *((f"also changed: {', '.join(changed[1:4])}",) if changed[1:] else ()),
                    ),
                    AGREES,
                    f"let __getitem__ work on a copy of what it takes from {changed[0]}",
                    place or loader.made or loader.place,
                )
            ]
    return []


def _may_hold_samples(loader: WatchedLoader, path: str) -> bool:
    """Whether it is an array, or has as many items as there are samples; others, such as a queue, change by design."""
    value = next((epoch.hashes[path] for epoch in loader.epochs if path in epoch.hashes), "")
    length = value.partition(":")[0] if ":" in value else ""
    return not length.isdecimal() or int(length) in (loader.description.length, loader.description.base_length)


def _differing(loader: WatchedLoader) -> list[Any]:
    """The indices whose sample changed from an epoch to the next."""
    found: list[Any] = []
    for before, after in itertools.pairwise(loader.epochs):
        old, new = by_index(before), by_index(after)
        found += [index for index, sample in old.items() if index in new and new[index].digest != sample.digest]
    return list(dict.fromkeys(found))
