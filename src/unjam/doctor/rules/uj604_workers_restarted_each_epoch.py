"""Every epoch spends a large part of its time starting workers.

What happened: without `persistent_workers` each epoch starts new workers. Their start takes a large
part of the epoch's time.

Why: with spawn and forkserver a worker is a new Python process that imports torch and the dataset's
libraries and receives the dataset by pickle. With short epochs this cost dominates.

How to confirm: compare the time to the first batch of the second epoch, with and without persistent
workers.

How to fix: use `persistent_workers=True`. unjam's own loader starts workers in milliseconds.

Limits: measured over two epochs.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Trial
from unjam.doctor.proof import Severity, Toggle
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration

RULE = Rule("UJ604", "workers-restarted-each-epoch", Severity.WARNING, symptom="slow")
WORTH = 0.8  # seconds in an epoch
LOST = 6.0  # seconds in the whole run; a smaller loss is only a note
FEW = 4  # epochs; a shorter run is only a note too, even on a slow machine


def detect(case: Case) -> Finding | None:
    """Compare the second epoch's wait for its first batch with the whole epoch."""
    as_is, loader = case.as_is, case.loader
    if as_is is None or not as_is.fine or loader.persistent_workers:
        return None
    if not case.reading.in_loop or case.reading.remade_at:
        return None
    # on a slow machine the trial may end before the second epoch does
    start, epoch = startup(as_is), as_is.epochs[min(1, len(as_is.epochs) - 1)] if as_is.epochs else 0.0
    if not start or not epoch or start < WORTH or start < epoch * 0.3:
        return None
    epochs = case.reading.epochs if case.reading.epochs is not None else 10
    plan = as_is.plan.changed(persistent=True)
    kept = case.tried(plan)
    after = startup(kept) if kept and kept.fine else 0.0
    return Finding(
        RULE,
        f"each epoch of {duration(epoch)} spends {duration(start)} starting {count(loader.num_workers, 'worker')} ({loader.start_method})",
        f"persistent_workers=False at {loader.made_at}",
        (
            f"second epoch: {duration(start)} to its first batch; an epoch takes {duration(epoch)} in all",
            f"{kept.plan}: {duration(after)} to the first batch of the second epoch" if kept and after else "",
        ),
        Toggle(as_is.plan, (plan,), lambda base, other: 0 < startup(other) < startup(base) * 0.4, repeat=False),
        "persistent_workers=True",
        loader.made_at,
        severity=None if start * epochs >= LOST and epochs >= FEW else Severity.NOTE,
    )


def startup(trial: Trial | None) -> float:
    """Return the seconds to the first batch of the second epoch."""
    if trial is None or len(trial.starts) < 2:
        return 0.0
    first = next((b for b in trial.batches if b.epoch == 1), None)
    return trial.starts[1] + first.wait if first else 0.0
