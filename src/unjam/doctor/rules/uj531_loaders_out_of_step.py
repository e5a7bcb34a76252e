"""Two loaders that are iterated together have different orders.

What happened: the program takes batches from two shuffled loaders in turn, as `zip` does. Both have
the same number of samples, and their orders differ: the samples are paired wrongly.

Why: each loader shuffles on its own. Equal seeds help only while nothing else draws from the
generators, and `zip` does not exhaust the second loader, whose sampler then draws once less in each
epoch. With one generator for both, each gets a different part of the same sequence.

How to confirm: let both datasets return their index, and compare.

How to fix: use one dataset that returns both parts of a pair; or one sampler whose order both use.

Limits: only loaders that were both given a generator are compared: others may differ on purpose.
"""

from __future__ import annotations

import itertools

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedEpoch
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ531", "loaders-out-of-step", Severity.WARNING)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find two loaders that are used in turn, with the same length and different orders."""
    for one, other in itertools.combinations(watched.loaders, 2):
        same = one.description.length == other.description.length and one.pid == other.pid
        if not same or not one.description.random or not other.description.random:
            continue
        if not one.description.has_generator or not other.description.has_generator:
            continue  # nothing indicates that the orders should agree
        pairs = zip(one.epochs, other.epochs, strict=False)
        both = next(((a, b) for a, b in pairs if _together(a, b) and a.order != b.order), None)
        if both is not None:
            a, b = both
            shared = set(one.description.generators) & set(other.description.generators)
            return Finding(
                RULE,
                f"{one.name} and {other.name} are iterated together, but in different orders",
                "generator",
                (
                    f"epoch {a.number + 1}: {', '.join(map(str, a.indices[:5]))}, ...",
                    f"epoch {b.number + 1}: {', '.join(map(str, b.indices[:5]))}, ...",
                    "both draw from one generator object, one after the other"
                    if shared
                    else "their generators are no longer in the same state",
                ),
                AGREES,
                "let one dataset return both parts of a pair, or give both loaders the order of one sampler",
                other.made or other.place,
            )
    return None


def _together(a: WatchedEpoch, b: WatchedEpoch) -> bool:
    """Whether two epochs were used in turn: they began together and have about the same number of batches."""
    if not a.indices or not b.indices or abs(a.batches - b.batches) > 1 or a.batches < 2:
        return False
    shorter = min(a.seconds, b.seconds)
    return (
        abs(a.began - b.began) < max(0.2, 0.2 * shorter)
        and min(a.ended, b.ended) > max(a.began, b.began) + 0.5 * shorter
    )
