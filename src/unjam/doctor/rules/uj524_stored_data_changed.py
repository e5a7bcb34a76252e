"""Loading a sample modifies the dataset's stored data in place.

What happened: the same index gives a different sample in a later epoch, although no random numbers
are drawn: loading a sample changes what the dataset keeps in memory.

Why: an in-place operation (`+=`, `mul_`, `sort`, `pop`, `out=`) works on the stored array or list
and not on a copy. The second epoch, for example, normalises data that is already normalised.

How to confirm: hash the stored data before and after an epoch.

How to fix: work on a copy: `self.data[index].clone()`, `.copy()`, `sorted(...)`.

Limits: if each epoch starts new workers, the change is lost with them, and only samples that an
epoch loads twice can differ. Only parts of large arrays are compared.
"""

from __future__ import annotations

import itertools
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.proof import AGREES
from unjam.doctor.queries.loaders import attribute_name, by_index, changed_paths, draws_random_numbers
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule, case_of
from unjam.units import count

RULE = Rule("UJ524", "stored-data-changed", replaces=("UJ514", "UJ107"))


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find stored data that an epoch changed, and samples that differ because of that."""
    for loader in watched.loaders:
        if loader.iterable:
            continue
        changed = changed_paths(loader, same_length=True, by_loading=True)
        # a counter or a setting is not data
        changed = [path for path in changed if path not in loader.description.plain and _may_hold_samples(loader, path)]
        case = case_of(cases, loader)
        if not loader.workers and case is not None:
            changed = [path for path in changed if attribute_name(path) not in case.reading.writes]
        differ = _differing(loader)
        if draws_random_numbers(loader):  # samples differ anyway, so only data with an entry for each sample counts
            changed = [path for path in changed if path in loader.description.per_sample]
        if changed and differ:
            place = case.loader.dataset_place if case is not None else None
            return Finding(
                RULE,
                f"loading changes {changed[0]}: sample {names(map(str, differ), 3)} of {loader.name} differs in a later epoch",
                changed[0],
                (
                    f"the content of {changed[0]} changes during an epoch",
                    f"{count(len(differ), 'sample')} changed from one epoch to the next: {names(map(str, differ))}",
                    f"also changed: {', '.join(changed[1:4])}" if changed[1:] else "",
                ),
                AGREES,
                f"let __getitem__ work on a copy of what it reads from {changed[0]}",
                place or loader.made or loader.place,
            )
    return None


def _may_hold_samples(loader: WatchedLoader, path: str) -> bool:
    """Whether it is an array, or has as many items as there are samples; other objects, such as a queue, change by design."""
    value = next((epoch.hashes[path] for epoch in loader.epochs if path in epoch.hashes), "")
    length = value.partition(":")[0] if ":" in value else ""
    return not length.isdecimal() or int(length) in (loader.description.length, loader.description.base_length)


def _differing(loader: WatchedLoader) -> list[Any]:
    """List the indices whose sample changed from one epoch to the next."""
    found: list[Any] = []
    for before, after in itertools.pairwise(loader.epochs):
        old, new = by_index(before), by_index(after)
        found += [index for index, sample in old.items() if index in new and new[index].digest != sample.digest]
    return list(dict.fromkeys(found))
