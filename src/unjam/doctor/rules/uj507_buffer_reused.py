"""Samples share one buffer, and later samples overwrite earlier ones.

What happened: the dataset returns the same array or tensor each time, with new content. A batch is
collated after all its samples have been loaded, so all of them show the last one.

Why: a buffer is created once in `__init__` to save memory, or `numpy.frombuffer` reads a reused
`bytearray`, or a decoder writes with `out=`.

How to confirm: a sample's content changes after it was returned, when the next one is loaded.

How to fix: return a copy (`buffer.copy()`, `tensor.clone()`), or create the buffer in the sample's
own code.

Limits: with `batch_size=1` the reuse has no effect and is not reported.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import count

RULE = Rule("UJ507", "buffer-reused")


def detect(case: Case) -> Finding | None:
    """Find samples that changed after they were returned."""
    trial = next((t for t in (case.alone, case.compared) if t is not None and any(s.changed for s in t.samples)), None)
    if trial is None:
        return _batches(case)
    changed = [s for s in trial.samples if s.changed]
    alias = trial.alias
    place = case.loader.dataset_place
    return Finding(
        RULE,
        f"{count(len(changed), 'sample')} changed after being returned: all samples of a batch use one buffer",
        alias or case.loader.dataset,
        (
            f"changed when the next sample was loaded: {names(s.index for s in changed)}",
            f"they are stored in {alias}" if alias else "",
            *line_evidence("dataset:", place),
        ),
        OBSERVED,
        f"return a copy of {alias or 'the buffer'} (.copy() or .clone()) from {case.loader.dataset}",
        place,
    )


def _batches(case: Case) -> Finding | None:
    """Find batches that changed when the next one was collated."""
    trial = next((t for t in (case.alone, case.compared) if t is not None and t.overwritten is not None), None)
    if trial is None:
        return None
    alias = trial.overwritten or ""
    part = case.part(alias)
    name = alias.rpartition(".")[2]
    place = (part.place if part is not None else None) or case.loader.dataset_place
    return Finding(
        RULE,
        f"a batch changes when the next one is made: {case.loader.collate} returns the same memory each time",
        alias or case.loader.collate,
        (
            "the content of a batch was compared before and after the next one was made",
            f"it is stored in {alias}" if alias else "",
            f"set at {quoted(place)}" if part is not None and part.place else "",
        ),
        OBSERVED,
        f"return a copy of {name or 'the buffer'} (.clone()), or create it for each batch",
        place,
    )
