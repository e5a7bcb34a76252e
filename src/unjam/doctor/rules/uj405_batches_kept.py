"""The program keeps every batch.

What happened: the loop over the loader puts whole batches into a list. Each batch keeps its shared
memory and, with torch's loader, a descriptor for every tensor, until the program runs out of
descriptors, shared memory or memory.

Why: a tensor that came from a worker stays in shared memory as long as anything refers to it or to
a part of it.

How to confirm: a loop that keeps batches fails; one that does not keep them succeeds.

How to fix: keep a copy of what you need from a batch: `kept.append(batch.clone())`, a number
(`.item()`), an array (`.numpy().copy()`).

Limits: only the captured loop is examined.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import Severity, Toggle
from unjam.doctor.queries.trials import ending_words
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import size

RULE = Rule("UJ405", "batches-kept", symptom="raised")


def detect(case: Case) -> Finding | None:
    """Find a loop that keeps batches where a whole epoch of them does not fit."""
    kept, loader, process_facts, as_is = case.reading.kept_batches, case.loader, case.process_facts, case.as_is
    if kept is None or as_is is None or not as_is.batches:
        return None
    per_epoch = loader.batches or len(as_is.batches)
    tensors = max(b.tensors for b in as_is.batches) * per_epoch + process_facts.descriptors_used
    nbytes = max(b.storage for b in as_is.batches) * per_epoch
    few = tensors > process_facts.descriptors * 0.9
    large = nbytes > min(process_facts.shm_free or 1 << 60, process_facts.memory or 1 << 60) * 0.5
    if not few and not large:
        return None
    plan = as_is.plan.changed(keep=True, epochs=1)
    trial = case.tried(plan)
    place, name = kept
    failed = trial is not None and not trial.fine and as_is.fine
    return Finding(
        RULE,
        f"the program keeps every batch in {name}: "
        + (
            f"{tensors:,} descriptors for an epoch, the limit is {process_facts.descriptors:,}"
            if few
            else f"{size(nbytes)} for an epoch"
        ),
        f"{name} at {place}",
        (
            f"batches are kept at {quoted(place)}",
            f"an epoch has {per_epoch:,} batches of {size(max(b.storage for b in as_is.batches))}",
            f"{trial.plan}: {ending_words(trial)}" if failed and trial is not None else "",
        ),
        Toggle(plan, (as_is.plan,)),
        f"keep only a copy of what you need: {name}.append(batch.clone()), or numbers",
        place,
        severity=None if failed else Severity.WARNING,
    )
