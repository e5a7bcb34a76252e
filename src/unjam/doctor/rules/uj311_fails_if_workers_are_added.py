"""A loader that works without workers would fail with workers.

What happened: the program loads its data without workers. The same loader was tried with two
workers, and it froze, failed, or gave different samples.

Why: a worker is another process. It has copies of the program's objects: locks that are held,
thread objects whose threads do not run, files that share their position. An iterable dataset that
does not check which worker it runs in yields all of its samples in every worker.

How to confirm: set `num_workers=2` and run `unjam check` again; its findings then name the cause.

How to fix: nothing, as long as the loader has no workers.

Limits: one trial of a few seconds, with the default start method.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Plan, Trial
from unjam.doctor.proof import Severity, Toggle
from unjam.doctor.queries.trials import differing, first_line
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ311", "fails-if-workers-are-added", Severity.NOTE, symptom="predicted")
WORKERS, SECONDS = 2, 5.0


def detect(case: Case) -> Finding | None:
    """Try a loader that works without workers with two workers."""
    loader, alone = case.loader, case.alone
    if loader.num_workers or alone is None or not alone.fine or alone.bad or not alone.samples or case.drains:
        return None
    if case.program is not None and case.program.outcome in ("failed", "frozen"):
        return None  # the program's own failure comes first
    plan = Plan(WORKERS, loader.start_method or "fork", seconds=SECONDS)
    trial = case.tried(plan)
    problem = _what_went_wrong(case, alone, trial) if trial is not None else ("", ())
    if problem is None:
        return None
    what, evidence = problem
    return Finding(
        RULE,
        f"with workers, this loader over {loader.dataset} {what}",
        f"num_workers={WORKERS}",
        (*evidence, f"without workers, as in the program: {len(alone.samples)} samples, none failed"),
        Toggle(plan, (alone.plan,), lambda *_: True, decisive=True, repeat=False),
        f"keep num_workers=0; or set num_workers={WORKERS} and run `unjam check` again, which then looks for the cause",
        loader.made_at or loader.iterated_at,
    )


def _what_went_wrong(case: Case, alone: Trial, trial: Trial) -> tuple[str, tuple[str, ...]] | None:
    if trial.outcome == "hung":
        places = [quoted(one.place) for one in trial.stuck if one.place is not None and one.worker >= 0]
        return "would freeze", (f"{trial.plan}: no batch arrived", *(f"a worker waits at {one}" for one in places[:1]))
    if trial.outcome == "died":
        return "would crash a worker", tuple(f"{trial.plan}: {end.signal or end.code}" for end in trial.ends[:1])
    if trial.outcome == "raised" and trial.raised is not None:
        bad = next(iter(trial.bad), trial.raised)
        return "would fail", (f"{trial.plan}: {bad.type_name}: {first_line(bad)[:200]}",)
    if other := differing(case, trial):
        return "would give different samples", (f"{trial.plan}: sample {other[0].index} differs",)
    once, now = len(alone.of_epoch(0)), len(trial.of_epoch(0))
    if case.loader.iterable and alone.outcome == trial.outcome == "finished" and now == WORKERS * once:
        return "would give every sample twice", (f"{trial.plan}: {now} samples instead of {once}",)
    return None
