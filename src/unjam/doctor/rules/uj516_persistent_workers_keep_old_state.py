"""Persistent workers do not see changes that the program makes to the dataset.

What happened: the program changes the dataset between epochs (an epoch number, a difficulty, a
list), but with `persistent_workers=True` the workers keep the copy that they received at the start.

Why: every worker works on a copy of the dataset; only new workers get a new copy.

How to confirm: print the attribute in `__getitem__` in the second epoch.

How to fix: use `persistent_workers=False`; or keep the value in shared memory
(`torch.tensor(0).share_memory_()`, `multiprocessing.Value`); or pass it through the sampler with
the index.

Limits: found by reading the loop; whether samples depend on the attribute follows from the
dataset's code.
"""

from __future__ import annotations

import itertools

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedEpoch, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import stored
from unjam.doctor.mechanisms.state_differs import SetAfterWorkersStart
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.rules.rule import Finding, Rule, case_of, line_evidence

RULE = Rule("UJ516", "persistent-workers-keep-old-state")


def detect(case: Case) -> Finding | None:
    """Find an attribute of the dataset that the loop sets while its workers are persistent."""
    if case.watched_loader is not None and len(case.watched_loader.epochs) > 1:
        return None  # detect_program judges a watched program
    if not case.loader.persistent_workers or not case.loader.num_workers or not case.reading.writes:
        return None
    name, place = next(iter(case.reading.writes.items()))
    return Finding(
        RULE,
        f"the loop sets dataset.{name}, and persistent workers keep the value they were started with",
        f"dataset.{name}",
        (f"set in the loop at {quoted(place)}", "persistent_workers=True: workers receive the dataset once"),
        AGREES,
        f"use persistent_workers=False, or keep {name} in shared memory (torch.tensor(0).share_memory_())",
        place,
    )


def words(one: SetAfterWorkersStart) -> Words:
    """Say that the value is set too late for the epoch."""
    return Words(
        f"the program sets {one.culprit} after the workers of {one.loader} have started: they still have the value of an earlier epoch",
        f"set {one.culprit.rpartition('.')[2]} before iter(loader), not in the sampler or in the loop; or keep it in shared memory",
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find values that loading reads and that the program changed while its workers were running."""
    for loader in watched.loaders:
        if not loader.description.persistent or not loader.workers:
            continue
        for before, after in itertools.pairwise(loader.epochs):
            changed = [path for path, value in before.hashes.items() if after.hashes.get(path, value) != value]
            stale = [path for path in changed if _is_read(loader, path) and _workers_keep(before, after, path)]
            if stale:
                case = case_of(cases, loader)
                name = stale[0].rpartition(".")[2]
                written = case.reading.writes.get(name) if case is not None else None
                files = {place.file for place in (loader.place, loader.made, after.place) if place is not None}
                place = written or next((at for file in sorted(files) for at in stored(file, name)), None)
                return Finding(
                    RULE,
                    f"the program changes {stale[0]}, and persistent workers keep the value they were started with",
                    stale[0],
                    (
                        f"{stale[0]} has another value in epoch {after.number + 1} of {loader.name}; its workers have the old one",
                        *line_evidence("set at", place),
                        "persistent_workers=True: workers receive their copies once",
                    ),
                    OBSERVED if after.worker_hashes else AGREES,
                    f"use persistent_workers=False, or keep {name} in shared memory (torch.tensor(0).share_memory_())",
                    place or after.place or loader.made,
                )
    return None


def _is_read(loader: WatchedLoader, path: str) -> bool:
    return not path.startswith("dataset") or path in loader.description.reads


def _workers_keep(before: WatchedEpoch, after: WatchedEpoch, path: str) -> bool:
    """Whether every worker whose values are known has the same value in both epochs."""
    pairs = [
        (held.get(path), after.worker_hashes.get(worker, {}).get(path)) for worker, held in before.worker_hashes.items()
    ]
    known = [(old, new) for old, new in pairs if old is not None and new is not None]
    return all(old == new for old, new in known)
