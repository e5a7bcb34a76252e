"""The loader raises an exception outside of any sample.

What happened: iterating the loader raised an exception in the program's own process, and no sample,
collate function or worker caused it.

Why: a sampler or batch sampler fails or yields invalid indices, an option is wrong, or the program
reached a limit of the machine that no other rule knows.

How to confirm: iterate the sampler on its own: `list(loader.batch_sampler)`.

How to fix: look at the exception and its line.

Limits: this is a symptom; the exception is shown unchanged.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED
from unjam.doctor.queries.trials import first_line, raised_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule(
    "UJ309",
    "loader-raises",
    symptom="raised",
    fallback=True,
    yields_to=("died", "start", "none", "differs", "frozen", "lost", "memory"),
)


def detect(case: Case) -> Finding | None:
    """Find an exception in the program's own process that no sample or worker explains."""
    failed = [
        t for t in (case.as_is, case.alone) if t is not None and t.raised is not None and not t.bad and not t.ends
    ]
    if not failed or failed[0].raised is None:
        return None
    raised = failed[0].raised
    message = first_line(raised)[:200]
    both = len(failed) > 1 or not case.loader.num_workers
    return Finding(
        RULE,
        f"iterating the loader raises {raised.type_name}: {message}",
        f"{raised.place}" if raised.place else f"{case.loader.kind} at {case.loader.made_at}",
        (
            *raised_words(raised),
            f"{failed[0].plan}: after {len(failed[0].samples)} samples",
            "also without workers" if both and case.loader.num_workers else "",
        ),
        OBSERVED,
        f"look at {raised.place or 'the sampler and the loader options'}",
        raised.place or case.loader.made_at,
    )
