"""A sample raises an exception.

What happened: loading one or more samples raises, with workers or without. The epoch ends there;
torch's message does not name the index and sometimes not even the exception.

Why: a damaged or missing file, an unexpected label, a bug in the dataset.

How to confirm: `dataset[index]` in a plain Python session raises the same exception.

How to fix: fix the named samples or the line. To train without them, use unjam's
`on_error="skip"`, which skips and counts them.

Limits: samples that the doctor had no time to load may fail too; the finding says how many were
loaded.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import (
    bad_samples,
    basis_without_samples,
    exception_naming_its_process,
    first_line,
    is_memory_error,
    names,
    out_of_descriptors,
)
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import count

RULE = Rule("UJ306", "sample-raises", symptom="raised")


def detect(case: Case) -> Finding | None:
    """Find exceptions of samples in the trial without workers."""
    alone = case.alone
    bad = [
        b
        for b in bad_samples(alone, "sample")
        if b.type_name not in ("SystemExit", "StopIteration", "KeyboardInterrupt")
    ]
    # the trial runs in a fork, where an accelerator that was in use fails (UJ703)
    device = case.process_facts.accelerator or "forked subprocess"
    bad = [b for b in bad if not is_memory_error(b) and not out_of_descriptors(b) and device not in b.message]
    if exception_naming_its_process(case) is not None:
        bad = [b for b in bad if not b.names_process]  # every trial runs in another process than the program
    if case.loader.num_workers:
        bad = [b for b in bad if not b.pickle_error]
    if alone is None or not bad:
        return None
    # if most samples fail, the cause may be the sandbox process: try in the program's own process
    many = len(bad) > 0.5 * (len(alone.samples) + len(bad)) and case.loader.num_workers > 0
    own = alone.plan.changed(in_place=True, epochs=1, seconds=4.0)
    in_place = case.tried(own)
    if in_place is not None and in_place.fine and not in_place.bad:
        return None
    first = bad[0]
    kinds = list(dict.fromkeys(b.type_name for b in bad))
    loaded = len(alone.samples) + len(bad)
    total = f" of {case.loader.length:,}" if case.loader.length else ""
    message = first_line(first)[:160]
    return Finding(
        RULE,
        f"{count(len(bad), 'sample')} of the {loaded:,} loaded{total} {'raises' if len(bad) == 1 else 'raise'} {' or '.join(kinds[:3])}",
        f"sample {names(b.index for b in bad)}" + (f" at {first.place}" if first.place else ""),
        (
            f"sample {first.index}: {first.type_name}: {message}",
            *line_evidence("raised at", first.place),
            "also without workers: the sample is the cause, not the workers",
        ),
        basis_without_samples(case, (b.index for b in bad)),
        f"fix sample {names(b.index for b in bad)}, or how {first.place or case.loader.dataset} handles it",
        first.place,
        wants=(own,) if many else (),
        kinds=tuple(kinds),
    )
