"""The dataset depends on a background thread that does not exist in forked workers.

What happened: a sample waits for a background thread of the program to fill a queue, run a
coroutine, complete a future or set an event. The thread runs in the program, but fork did not copy
it into the workers, so they wait forever.

Why: fork copies memory, not threads. A ThreadPoolExecutor that was used before the fork assumes
that its threads still exist.

How to confirm: the same samples load in the program's own process, where the thread runs.

How to fix: start the thread, executor or event loop in the worker: on first use in `__getitem__`,
or in `worker_init_fn`.

Limits: with spawn and forkserver such objects usually cannot be pickled at all (UJ101).
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import StuckProcess
from unjam.doctor.proof import AGREES, SUGGESTED, Toggle
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, stuck_processes, waits_for
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ204", "thread-lost-at-fork", symptom="frozen")
_KINDS = ("executor", "loop", "thread", "queue", "future", "event", "condition")


def detect(case: Case) -> Finding | None:
    """Find a wait for the work of a program thread that the worker does not have."""
    if not case.process_facts.threads:
        return None
    for base, stuck in stuck_processes(case):
        if stuck.native or stuck.busy:
            continue
        sync = waits_for(stuck, *_KINDS)
        if sync is None or sync.state.between_processes:
            continue
        missing = [thread for thread in case.process_facts.threads if thread.name not in stuck.threads]
        if not missing:
            continue
        plan = base.plan.changed(workers=0, start="", in_place=True, epochs=1, tolerant=False, seconds=4.0)
        trial = case.tried(plan)
        if trial is not None and trial.outcome == "hung":
            return None  # it hangs even where the thread runs
        # prefer the object that the user's line names over the lock inside it
        named = next((s for s in stuck.syncs if case.part(s.path)), sync)
        part = case.part(named.path)
        made = [one for one in case.parts if one.kind in ("executor", "loop")]
        path = made[0].path if named.path in ("self", "") and made else named.path
        part = part or case.part(path)
        return Finding(
            RULE,
            f"{describe_worker(stuck)} waits for {path}, which a thread of the program serves; the worker has no such thread",
            path,
            (
                f"waits at {quoted(stuck.place)}",
                f"threads of the program: {', '.join(repr(t.name) for t in case.process_facts.threads[:4])}; in the worker: "
                + (", ".join(stuck.threads) or "none"),
                *line_evidence("created at", part.place if part else None),
            ),
            Toggle(base.plan, (plan,), ground=AGREES if _unserved(stuck) else SUGGESTED),
            f"create {path} and its thread in the worker: on first use, or in worker_init_fn",
            stuck.place,
        )
    return None


def _unserved(stuck: StuckProcess) -> bool:
    return any(s.state.alive in (0, False) or s.state.kind in ("queue", "future") for s in stuck.syncs)


def detect_live(scene: Scene) -> Finding | None:
    """Find a forked worker that waits for another thread and has none."""
    for blocked in scenes.blocked_processes(scene):
        sync = blocked.sync
        if sync is None or sync.state.kind not in _KINDS or sync.state.kind == "loop":
            continue
        if sync.state.between_processes or not blocked.process.forked or blocked.others:
            continue
        threads = [thread.name for thread in scenes.own_threads(scene.main_of(blocked.process))]
        if not threads:
            continue
        name = scenes.called_on(blocked) or f"a {sync.type_name or sync.state.kind}"
        return Finding(
            RULE,
            f"{blocked.who} waits for {name}, which another thread would serve; the worker has no other thread",
            name,
            blocked.evidence(f"threads of the main process: {', '.join(map(repr, threads[:4]))}; in the worker: none"),
            AGREES,
            f"create {name} and its thread in the worker: on first use, or in worker_init_fn",
            blocked.thread.place,
        )
    return None
