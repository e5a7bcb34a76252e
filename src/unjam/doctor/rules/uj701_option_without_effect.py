"""A loader option has no effect.

What happened: the loader was given an option that only workers use, but it has no workers; or an
option that needs an accelerator, but there is none.

Why: torch accepts `worker_init_fn` and `timeout` with `num_workers=0` without a warning. The
function is never called: it does not set its seeds or open its handles.

How to confirm: put a print into the function.

How to fix: remove the option, or give the loader workers.

Limits: options that torch itself rejects are not covered here.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ701", "option-without-effect", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Find options that have no effect on this loader."""
    loader = case.loader
    idle = []
    if not loader.num_workers:
        idle += [f"worker_init_fn={loader.worker_init}"] if loader.worker_init and loader.worker_init_place else []
        idle += [f"timeout={loader.timeout:g}"] if loader.timeout else []
    if idle:
        why = "the loader has no workers; samples are loaded in the program's own process"
        title = f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect with num_workers=0"
        severity, help_text = None, f"remove {' and '.join(idle)}, or set num_workers"
    elif loader.pins_without_accelerator:
        idle, severity = ["pin_memory=True"], Severity.NOTE
        why = "torch finds no accelerator on this machine"
        title = "pin_memory=True has no effect without an accelerator"
        help_text = "nothing to do if the program also runs on machines with an accelerator"
    else:
        return None
    return Finding(RULE, title, ", ".join(idle), (why,), OBSERVED, help_text, loader.made_at, severity=severity)
