"""The loader freezes, and the cause is not known.

What happened: no process of the loader made progress for longer than its samples explain, and no rule knows why.

Why: unknown. The evidence names the processes, what they wait for, and their innermost lines.

How to confirm: `num_workers=0`. If that goes through, it is the workers' start or what they inherit; if not, it is the sample.

How to fix: look at the named line. `timeout=` in the loader turns the freeze into an error.

Limits: this is a symptom, not a cause.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules import watching
from unjam.doctor.rules.judging import POSSIBLE, frozen, quoted, worker_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ209", "frozen", symptom="frozen", fallback=True, yields_to=("died", "start"))


def detect(case: Case) -> Finding | None:
    """A hang that nobody explains."""
    hung = next(
        (trial for trial in (case.as_is, case.first_alone) if trial is not None and trial.outcome == "hung"), None
    )
    if hung is None:
        return None
    stuck = next((s for _, s in frozen(case)), hung.stuck[0] if hung.stuck else None)
    fresh = hung.plan.changed(fresh=True)
    anew = case.tried(fresh)
    evidence = [
        f"{worker_words(s)} waits for {s.words}{', at ' + quoted(s.place) if s.place else ''}" for s in hung.stuck[:4]
    ]
    if anew is not None and anew.outcome != "refused":
        evidence.append(f"{anew.plan}: {'all is well' if anew.fine else anew.outcome}")
    if hung.output.strip():
        evidence.append(f"printed last: {hung.output.strip().splitlines()[-1][:200]}")
    inherited = anew is not None and anew.fine
    return Finding(
        RULE,
        "the loader freezes"
        + (": what the workers inherit by fork is the cause" if inherited else " for an unknown reason"),
        f"{stuck.place}" if stuck and stuck.place else case.loader.dataset,
        tuple(evidence),
        POSSIBLE,
        "pass multiprocessing_context='forkserver'"
        if inherited
        else f"look at {stuck.place if stuck else 'the dataset'}"
        + ("; timeout=60 turns the freeze into an error" if case.loader.num_workers else ""),
        stuck.place if stuck else None,
        wants=(fresh,) if case.forked else (),
    )


def witness(scene: Scene) -> Finding | None:
    """A process that does not get on, and nobody knows why."""
    jam = next(iter(watching.jams(scene)), None)
    if jam is None:
        return None
    forked = ": held by a thread of the main process at the fork, taken and never released, or inside a library"
    return Finding(
        RULE,
        f"{jam.who} waits for {jam.stuck.words}" + (forked if jam.process.blind and jam.stuck.waits == "lock" else ""),
        f"{jam.thread.place or worker_words(jam.stuck)}",
        (
            f"it has not run for {watching.duration(jam.seconds)}",
            *((f"at {jam.where}",) if jam.thread.place else ()),
            *((f"libraries on its stack: {', '.join(jam.thread.libraries[:4])}",) if jam.thread.libraries else ()),
            *watching.peers(jam),
            *watching.consequence(scene, jam),
        ),
        POSSIBLE,
        f"look at {jam.thread.place}; timeout=60 in the loader turns the freeze into an error"
        if jam.thread.place
        else "let this command read the process's stacks, and it can name the line and the lock",
        jam.thread.place,
    )


def broken(DataLoader: Any) -> None:
    """A sample that waits for a signal that nobody sends."""
    import signal

    from unjam.doctor.rules.programs import Numbers

    def make(index: int) -> int:
        if index == 2:
            signal.sigwait([signal.SIGUSR1])
        return index

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass


def fixed(DataLoader: Any) -> None:
    """One that does not."""
    from unjam.doctor.rules.programs import Numbers

    for _ in DataLoader(Numbers(8), batch_size=4, num_workers=1):
        pass
