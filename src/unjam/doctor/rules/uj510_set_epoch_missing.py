"""`set_epoch` is never called, so every epoch has the same order.

What happened: the sampler derives its order from the epoch number, and the program never tells it
that a new epoch begins.

Why: a `DistributedSampler` must give every process the same order, so it cannot choose one at
random; the program has to call `set_epoch`.

How to confirm: two iterations of the sampler give the same order, and other epoch numbers give
different orders.

How to fix: call `sampler.set_epoch(epoch)` at the start of each epoch.

Limits: if the program was not watched while it ran, the loop over epochs must be in its source, and
a call in a framework's file is not found.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.queries.loaders import consecutive, trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ510", "set-epoch-missing", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Find a sampler whose order depends on set_epoch, and a loop over epochs without the call."""
    loader, reading = case.loader, case.reading
    if case.watched_loader is not None or not loader.order_repeats or reading.set_epoch or not reading.in_loop:
        return None
    return _finding(
        loader.sampler,
        "two iterations of the sampler gave the same order; set_epoch(1) and set_epoch(2) gave different orders",
        f"the loop over epochs around {loader.iterated_at} does not call it",
        loader.iterated_at,
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a training loader with the same order in two epochs, whose sampler has set_epoch."""
    for loader in trainers(watched):
        if loader.description.set_epoch and loader.description.random and _repeats(loader):
            files = {place.file for place in (loader.place, loader.made) if place is not None}
            called = next((place for file in sorted(files) for place in attribute_calls(file, ("set_epoch",))), None)
            why = f"the call at {quoted(called)} does not reach the sampler" if called else "no line calls it"
            shown = ", ".join(map(str, loader.complete_epochs[0].indices[:6]))
            order = f"{len(loader.complete_epochs)} epochs of {loader.name} begin with {shown}"
            return _finding(loader.description.sampler, order, why, called or loader.place or loader.made)
    return None


def _finding(sampler: str, order: str, why: str, place: Place | None) -> Finding:
    return Finding(
        RULE,
        f"every epoch has the same order: {sampler}.set_epoch is never called",
        f"{sampler}.set_epoch",
        (order, why),
        OBSERVED,
        f"call set_epoch(epoch) of the {sampler} itself before each epoch",
        place,
        "+    sampler.set_epoch(epoch)",
    )


def _repeats(loader: WatchedLoader) -> bool:
    """Whether two epochs of the program had the same order."""
    return any(before.order == after.order and before.indices for before, after in consecutive(loader))
