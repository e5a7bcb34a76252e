"""The prefetched batches need more than half of the free memory.

What happened: batch × `prefetch_factor` × workers is more than half of the free memory. If the
program consumes slowly, the workers run ahead until memory is short.

Why: every worker may hold `prefetch_factor` finished batches, however slow the program is.

How to confirm: compare the numbers, which come from measured batches.

How to fix: use a smaller `prefetch_factor` or fewer workers. unjam's own loader has a budget in
bytes (`memory_budget=`).

Limits: this is predicted, not observed; the model's own memory is not counted.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import size

RULE = Rule("UJ403", "batches-do-not-fit", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Compare the size of the prefetched batches with the free memory."""
    loader, memory = case.loader, case.process_facts.memory
    known = next((t for t in (case.alone, case.as_is) if t is not None and t.batches), None)
    if not loader.num_workers or not memory or known is None:
        return None
    batch = max(b.storage for b in known.batches)
    need = batch * (loader.prefetch_factor * loader.num_workers + 1)
    if need <= memory * 0.5:
        return None
    return Finding(
        RULE,
        f"prefetched batches may need {size(need)} of {size(memory)} free memory",
        f"prefetch_factor={loader.prefetch_factor} × num_workers={loader.num_workers}",
        (f"one batch: {size(batch)}", f"prefetched: {loader.prefetch_factor} × {loader.num_workers}, and one in use"),
        SUGGESTED,
        f"prefetch_factor={max(1, int(memory * 0.4 / batch / loader.num_workers))} needs less than half of the free memory",
        loader.made_at,
    )
