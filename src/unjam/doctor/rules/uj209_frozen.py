"""The loader hangs for an unknown reason.

What happened: no process of the loader made progress for longer than its samples explain, and no
other rule names the cause.

Why: unknown. The evidence names the processes, what they wait for, and their innermost lines.

How to confirm: run with `num_workers=0`. If that succeeds, the cause is how the workers start or
what they inherit; if not, it is the sample.

How to fix: look at the named line. `timeout=` in the loader turns the freeze into an error.

Limits: this is a symptom, not a cause.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.waits import FrozenProgram
from unjam.doctor.proof import SUGGESTED
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, stuck_processes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ209", "frozen", symptom="frozen", fallback=True, yields_to=("died", "start"))


def words(one: FrozenProgram) -> Words:
    """Say where the program is stuck."""
    if one.computes:
        return Words(
            f"the program makes no progress {one.when}: {one.who} computes at {one.place}",
            f"check the loop around {quoted(one.place) or one.who}: what would end it?",
        )
    return Words(
        f"the program makes no progress {one.when}: {one.who} waits for {one.waits}",
        f"check {quoted(one.place) or one.who}: what would end this wait, and which process or thread should do that?",
    )


def detect(case: Case) -> Finding | None:
    """Find a hang; other rules replace this finding where they know the cause."""
    hung = next(
        (trial for trial in (case.as_is, case.first_alone) if trial is not None and trial.outcome == "hung"), None
    )
    if hung is None:
        return None
    stuck = next((s for _, s in stuck_processes(case)), hung.stuck[0] if hung.stuck else None)
    fresh = hung.plan.changed(fresh=True)
    fresh_trial = case.tried(fresh)
    evidence = [
        f"{describe_worker(s)} waits for {s.words}{', at ' + quoted(s.place) if s.place else ''}"
        for s in hung.stuck[:4]
    ]
    if fresh_trial is not None and fresh_trial.outcome != "refused":
        evidence.append(f"{fresh_trial.plan}: {'succeeds' if fresh_trial.fine else fresh_trial.outcome}")
    if hung.output.strip():
        evidence.append(f"last line of output: {hung.output.strip().splitlines()[-1][:200]}")
    inherited = fresh_trial is not None and fresh_trial.fine
    return Finding(
        RULE,
        "the loader hangs"
        + (" because of something the workers inherit by fork" if inherited else " for an unknown reason"),
        f"{stuck.place}" if stuck and stuck.place else case.loader.dataset,
        tuple(evidence),
        SUGGESTED,
        "pass multiprocessing_context='forkserver'"
        if inherited
        else f"look at {stuck.place if stuck and stuck.place else 'what the processes wait for'}"
        + ("; timeout=60 turns the freeze into an error" if case.loader.num_workers else ""),
        stuck.place if stuck else None,
        wants=(fresh,) if case.forked else (),
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a blocked process; other rules replace this finding where they know the cause."""
    blocked = next(iter(scenes.blocked_processes(scene)), None)
    if blocked is None:
        return None
    lock = ": it was held by a thread of the main process at the fork, never released, or belongs to a native library"
    return Finding(
        RULE,
        f"{blocked.who} waits for {blocked.thread.waiting.words}"
        + (lock if blocked.process.stack_error and blocked.thread.waiting.kind == "lock" else ""),
        f"{blocked.thread.place or blocked.worker}",
        (
            f"it has not run for {duration(blocked.seconds)}",
            f"at {blocked.where}" if blocked.thread.place else "",
            f"libraries on its stack: {', '.join(blocked.thread.libraries[:4])}" if blocked.thread.libraries else "",
            *scenes.peer_words(blocked),
            *scenes.consequence(scene, blocked),
        ),
        SUGGESTED,
        f"look at {blocked.thread.place}; timeout=60 in the loader turns the freeze into an error"
        if blocked.thread.place
        else "allow this command to read the process's stacks, so that it can name the line and the lock",
        blocked.thread.place,
    )
