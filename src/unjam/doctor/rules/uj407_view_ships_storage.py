"""A small view sends its whole, much larger storage to the main process.

What happened: the batch holds a tensor that is a view into a much larger tensor. torch sends a
tensor's whole storage, so every batch carries all of it through shared memory.

Why: `big[i]`, `big[a:b]` and `.view()` do not copy. The default collate copies samples into a new
tensor; with `batch_size=None` or a custom collate function nothing makes that copy.

How to confirm: compare `tensor.untyped_storage().nbytes()` with `tensor.nbytes`.

How to fix: `.clone()` the view before it is returned.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import size

RULE = Rule("UJ407", "view-ships-storage", Severity.WARNING)
WORTH = 1 << 20


def detect(case: Case) -> Finding | None:
    """Find a batch whose storage is much larger than its tensors."""
    known = next((t for t in (case.as_is, case.alone) if t is not None and t.batches), None)
    if known is None or not case.loader.num_workers:
        return None
    worst = max(known.batches, key=lambda b: b.storage - b.nbytes)
    if worst.storage - worst.nbytes < WORTH or worst.storage < 4 * max(1, worst.nbytes):
        return None
    whole = max(case.kinds("array"), key=lambda part: part.state.nbytes, default=None)
    maker = case.loader.dataset if case.loader.default_collate else case.loader.collate
    return Finding(
        RULE,
        f"a batch of {size(worst.nbytes)} carries a storage of {size(worst.storage)} through shared memory",
        whole.path if whole else maker,
        (
            f"batch {worst.number}: {size(worst.nbytes)} of tensors in storages of {size(worst.storage)}",
            f"{whole.path} has {size(whole.state.nbytes)}" if whole else "",
        ),
        OBSERVED,
        f"return a copy from {maker}: .clone() the view",
        case.loader.dataset_place,
    )
