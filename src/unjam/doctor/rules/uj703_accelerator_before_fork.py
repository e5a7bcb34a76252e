"""The accelerator was used before the workers were forked.

What happened: the program initialised CUDA (or another accelerator), and then forked workers. A
worker that uses the accelerator fails: the accelerator's driver does not survive a fork.

Why: the driver's threads and mappings belong to the process that created them.

How to confirm: call `torch.cuda.is_initialized()` before the loop; with
`multiprocessing_context="forkserver"` the workers can use the accelerator.

How to fix: keep tensors on the CPU in the dataset and move batches in the loop; or use
`multiprocessing_context="forkserver"`.

Limits: workers that do not use the accelerator work, so nothing is reported for them.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Toggle
from unjam.doctor.queries.trials import first_line
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ703", "accelerator-before-fork", symptom="differs")


def detect(case: Case) -> Finding | None:
    """Find forked workers that fail because the accelerator was initialised before the fork."""
    kind, as_is = case.process_facts.accelerator, case.as_is
    if kind is None or not case.forked:
        return None
    failed = next(
        (b for b in (as_is.bad if as_is else ()) if "forked subprocess" in b.message or kind in b.message), None
    )
    if failed is None or as_is is None:
        return None  # most programs use the accelerator before the loop, and their workers do not
    plan = as_is.plan.changed(workers=0, start="", in_place=True, epochs=1, seconds=4.0)
    return Finding(
        RULE,
        f"{kind} was initialised before the workers were forked: samples that use it fail",
        f"{failed.place}" if failed.place else f"{kind} before {case.loader.iterated_at}",
        (
            f"{kind} is already initialised at the first iter()",
            f"{failed.type_name}: {first_line(failed)[:140]}",
        ),
        Toggle(as_is.plan, (plan,)),
        "keep tensors on the CPU in the dataset, or pass multiprocessing_context='forkserver'",
        failed.place or case.loader.iterated_at,
    )
