"""The program leaks descriptors, processes, threads or memory in each epoch.

What happened: the training process holds more of a resource after each epoch, by about the same
amount each time.

Why: each epoch creates something that is never released: an iterator that is kept, a pool, a
temporary file, a list to which batches are added.

How to confirm: count `/proc/self/fd`, or print the memory, after each epoch.

How to fix: create it once before the loop, or close it at the end of the epoch.

Limits: needs three epochs. Memory counts only if it grows by at least 20 MB in each.
"""

from __future__ import annotations

import itertools
from typing import Any

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.mechanisms.growth import GrowingUse
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.rules.rule import Finding, Rule, case_of
from unjam.units import size

RULE = Rule("UJ410", "grows-each-epoch", Severity.WARNING)
LEAST = {"files": 2, "children": 1, "threads": 1, "memory": 20_000_000}
_WORDS = {"files": "open descriptors", "children": "child processes", "threads": "threads", "memory": "memory"}


def words(one: GrowingUse) -> Words:
    """Say what grows, and what keeps it."""
    verb = "grows" if one.what == "memory" else "grow"
    keeps = f"; {one.kept} grows at the same time" if one.kept else ""
    remedy = (
        f"keep numbers in {one.kept}: call .item() or .detach() on what is added, so that no autograd graph is kept"
        if one.graph
        else f"keep copies in {one.kept} (.clone(), numbers), or limit its size"
        if one.kept
        else f"close the {one.culprit}, or open each of them only once"
        if one.culprit != one.where
        else f"close what {one.where} opens, or open it only once"
    )
    return Words(
        f"{one.what} of {one.where} {verb} with every batch, from {one.first} to {one.last}{keeps}",
        remedy,
        severity=Severity.ERROR if one.ran_out else None,
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find what grew in every epoch of a loader."""
    for loaders in _by_line(trainers(watched) or watched.loaders):
        loader = loaders[-1]
        epochs = loader.epochs if len(loaders) == 1 else [one.epochs[-1] for one in loaders]
        for name, least in LEAST.items():
            values = [epoch.resources[name] for epoch in epochs if name in epoch.resources]
            steps = [b - a for a, b in itertools.pairwise(values[1:])]
            # the first epoch loads libraries and fills caches
            if len(steps) < 2 or min(steps) < least or max(steps) > 4 * min(steps):
                continue
            case = case_of(cases, loader)
            kept = case.reading.kept_batches if case is not None else None
            shown = ", ".join(size(v) if name == "memory" else str(v) for v in values[:6])
            return Finding(
                RULE,
                f"{_WORDS[name]} of the training process {'grows' if name == 'memory' else 'grow'} with each epoch: {shown}",
                kept[1] if kept else f"the loop over {loader.name}",
                (
                    f"{_WORDS[name]} after each epoch of {loader.name}: {shown}",
                    f"batches are kept in {kept[1]} at {kept[0]}" if kept else "",
                ),
                AGREES,
                "create it once before the loop over epochs, or release it at the end of each epoch",
                kept[0] if kept else loader.place or loader.made,
            )
    return None


def _by_line(loaders: list[WatchedLoader]) -> list[list[WatchedLoader]]:
    """Group the loaders by the line that created them: a loop may create one for each epoch."""
    found: dict[Any, list[WatchedLoader]] = {}
    for loader in loaders:
        found.setdefault((loader.pid, loader.made or loader.place), []).append(loader)
    return list(found.values())
