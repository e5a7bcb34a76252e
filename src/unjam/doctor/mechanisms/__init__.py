"""The ways in which data loading goes wrong: pure functions from facts to explanations."""

from __future__ import annotations

from collections.abc import Iterator

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.mechanisms import (
    cannot_cross,
    conflicting_writes,
    ended,
    growth,
    history,
    left_held,
    lengths,
    limits,
    order,
    random_draws,
    ranks,
    shared_description,
    splits,
    state_differs,
    swallowed,
    time_spent,
    waits,
)

MECHANISMS = (
    limits, lengths, swallowed, cannot_cross, shared_description, left_held, ended, waits, state_differs, history, conflicting_writes,
    splits, order, random_draws, ranks, growth, time_spent,
)  # fmt: skip


def explanations(known: Knowledge) -> Iterator[Explanation]:
    """Everything that the mechanisms say about a program."""
    for mechanism in MECHANISMS:
        yield from mechanism.explain(known)
