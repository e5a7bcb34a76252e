"""The workers' cache is lost at the end of every epoch.

What happened: loading fills a container of the dataset in each worker; the next epoch starts new
workers with an empty container, and everything is computed again.

Why: without `persistent_workers`, workers end with the epoch, and their copies of the dataset are
lost.

How to confirm: print the size of the cache at the first sample of each epoch.

How to fix: use `persistent_workers=True`; or fill the cache in the program before the loader starts.

Limits: only containers that the dataset holds and functions with an lru_cache are examined.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedEpoch, WatchedLoader
from unjam.doctor.facts.source_places import stored
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.queries.loaders import attribute_name
from unjam.doctor.rules.rule import Finding, Rule, dataset_place, line_evidence

RULE = Rule("UJ609", "cache-lost-each-epoch", Severity.WARNING, symptom="slow")
WORTH = 0.5  # seconds of loading in an epoch


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a container that grows in the workers of each epoch and is empty again in the next."""
    for loader in watched.loaders:
        if not loader.workers or loader.description.persistent or len(loader.epochs) < 2:
            continue
        lost = set.intersection(*(_filled(epoch) for epoch in loader.epochs[:2]))
        refilled = [path for path in lost if _starts_alike(loader, path)]
        if not refilled or min(epoch.loading for epoch in loader.epochs[:2]) < WORTH:
            continue
        path = min(refilled)
        home = dataset_place(cases, loader)
        place = next(iter(stored(home.file, attribute_name(path))), None) if home is not None else None
        seconds = [epoch.loading for epoch in loader.epochs[:3]]
        return Finding(
            RULE,
            f"the workers fill {path} and lose it when they end: every epoch of {loader.name} computes it again",
            path,
            (
                f"{path} grows in the workers of each epoch and is empty at the start of the next",
                f"seconds that the workers spend on samples, by epoch: {', '.join(f'{one:.1f}' for one in seconds)}",
                *line_evidence("created at", place),
            ),
            AGREES,
            "use persistent_workers=True, which keeps the workers and what they have computed; or fill it before the loader starts",
            place or loader.made or loader.place,
        )
    return None


def _filled(epoch: WatchedEpoch) -> set[str]:
    """Return the containers that grew in a worker between the start of an epoch and the worker's end."""
    found = set()
    for worker, left in epoch.worker_end_hashes.items():
        for path, value in left.items():
            old = epoch.worker_hashes.get(worker, {}).get(path, "")
            before, after = old.partition(":")[0], value.partition(":")[0]
            if before.isdecimal() and after.isdecimal() and int(after) > int(before) + 3:
                found.add(path)
    return found


def _starts_alike(loader: WatchedLoader, path: str) -> bool:
    starts = [held.get(path) for epoch in loader.epochs[:2] for held in epoch.worker_hashes.values()]
    return all(a == b for a, b in itertools.pairwise(starts))
