"""Every epoch has the same order: `set_epoch` is never called.

What happened: the sampler derives its order from the epoch's number, and the program never tells it
that a new epoch began.

Why: a `DistributedSampler` must give every process the same order, so it cannot draw one at random;
the program has to call `set_epoch`.

How to confirm: two passes over the sampler give the same order, and other epoch numbers give other
orders.

How to fix: call `sampler.set_epoch(epoch)` at the top of the epoch's loop.

Limits: a call in a file that was not read (a framework's) is not seen; the loop over epochs must be
visible.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.rules.judging import PROVEN
from unjam.doctor.rules.rule import Finding, Rule, Severity

RULE = Rule("UJ510", "set-epoch-missing", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Find a sampler whose order depends on set_epoch, and a loop over epochs without the call."""
    loader = case.loader
    if not loader.order_repeats or case.reading.set_epoch or not case.reading.in_loop:
        return None
    return Finding(
        RULE,
        f"every epoch has the same order: {loader.sampler}.set_epoch is never called",
        f"{loader.sampler}.set_epoch",
        (
            "two passes over the sampler gave the same order; set_epoch(1) and set_epoch(2) gave different ones",
            f"the loop over epochs around {loader.iterated_at} does not call it",
        ),
        PROVEN,
        f"call sampler.set_epoch(epoch) before the loop at {loader.iterated_at}",
        loader.iterated_at,
        "+    sampler.set_epoch(epoch)",
    )


def broken(DataLoader: Any) -> None:
    """Run epochs without set_epoch."""
    from torch.utils.data import DistributedSampler

    from unjam.doctor.rules.programs import Numbers

    data = Numbers(16)
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    for _ in range(2):
        for _ in loader:
            pass


def fixed(DataLoader: Any) -> str:
    """Call set_epoch; this is a script because the rule reads the file."""
    return (
        "from torch.utils.data import DataLoader, DistributedSampler\n"
        "from unjam.doctor.rules.programs import Numbers\n"
        "data = Numbers(16)\n"
        "sampler = DistributedSampler(data, num_replicas=2, rank=0)\n"
        "loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)\n"
        "for epoch in range(2):\n"
        "    sampler.set_epoch(epoch)\n"
        "    for batch in loader:\n"
        "        pass\n"
    )
