"""Samples differ in workers for an unknown reason.

What happened: some indices give different samples in workers than without, although every known
generator had the same seed.

Why: unknown: state shared between processes, or state that a worker does not have.

How to confirm: load the named samples with `num_workers=0` and compare.

How to fix: look at what the sample reads besides its own index.

Limits: this is a symptom. Datasets whose samples differ from call to call anyway are not compared.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import AGREES, SUGGESTED, Ground, Toggle
from unjam.doctor.queries.trials import differing, names
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ514", "differs-in-workers", symptom="differs", fallback=True)


def detect(case: Case) -> Finding | None:
    """Find samples that differ in workers; other rules replace this where they know the cause."""
    wrong = differing(case, case.compared)
    if not wrong or case.compared is None or any(s.changed for s in case.compared.samples):
        return None
    fresh = case.compared.plan.changed(fresh=True)
    fresh_trial = case.tried(fresh)
    correct_when_fresh = fresh_trial is not None and fresh_trial.fine and not differing(case, fresh_trial)
    indices = {s.index for s in wrong}
    if len(indices) < 2 and not correct_when_fresh:
        return None  # may be chance
    return Finding(
        RULE,
        f"{len(indices)} of {len({s.index for s in case.compared.samples})} samples differ between workers and no workers",
        f"sample {names(s.index for s in wrong)} of {case.loader.dataset}",
        (
            f"workers that delivered them: {', '.join(str(w) for w in sorted({s.worker for s in wrong}))}",
            f"{fresh_trial.plan}: every sample is correct" if correct_when_fresh and fresh_trial else "",
        ),
        _same_without_workers(case, AGREES if correct_when_fresh or len(indices) > 1 else SUGGESTED),
        f"look at what {case.loader.dataset} reads besides the index: handles, globals, what the process inherited",
        case.loader.dataset_place,
        wants=(fresh,) if case.forked else (),
    )


def _same_without_workers(case: Case, ground: Ground) -> Toggle:
    """Require that without workers the samples are the same each time, also over several epochs."""
    assert case.alone is not None
    assert case.compared is not None
    epochs = case.alone.plan.changed(epochs=3)
    return Toggle(
        epochs,
        (case.compared.plan,),
        lambda _, workers: bool(differing(case, workers)),
        ground,
        decisive=True,
        repeat=False,
    )
