"""The ways in which data loading goes wrong: pure functions from facts to explanations."""

from __future__ import annotations

from collections.abc import Iterator

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.mechanisms import (
    conflicting_writes,
    ended_peers,
    growth,
    history,
    lengths,
    limits,
    not_released,
    order,
    random_draws,
    ranks,
    shared_open_files,
    splits,
    state_differs,
    swallowed,
    time_spent,
    unsendable,
    waits,
)

MECHANISMS = (
    limits, lengths, swallowed, unsendable, shared_open_files, not_released, ended_peers, waits, state_differs, history, conflicting_writes,
    splits, order, random_draws, ranks, growth, time_spent,
)  # fmt: skip


def explanations(known: Knowledge) -> Iterator[Explanation]:
    """Everything that the mechanisms say about a program."""
    for mechanism in MECHANISMS:
        yield from mechanism.explain(known)
