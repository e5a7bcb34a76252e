"""The dataset needs a thread of the program, and the workers do not have it.

What happened: a sample waits for something that a background thread of the program would do: fill a queue, run a coroutine, complete a
future, set an event. The thread runs in the program, but fork did not copy it into the workers, so they wait for ever.

Why: fork copies memory, not threads. A ThreadPoolExecutor that was used before the fork believes that its threads exist.

How to confirm: the same samples load in the program's own process, where the thread lives.

How to fix: start the thread, executor or event loop in the worker: on first use in `__getitem__`, or in `worker_init_fn`.

Limits: with spawn and forkserver such objects usually cannot be pickled at all (UJ101).
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.trial import Stuck, Trial
from unjam.doctor.rules import watching
from unjam.doctor.rules.judging import LIKELY, POSSIBLE, PROVEN, frozen, quoted, waits_for, worker_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ204", "thread-lost-at-fork", symptom="frozen")
_KINDS = ("executor", "loop", "thread", "queue", "future", "event", "condition")


def detect(case: Case) -> Finding | None:
    """A wait for what a thread does, where the threads of the program are missing."""
    if not case.world.threads:
        return None
    for base, stuck in frozen(case):
        if stuck.native or stuck.busy:
            continue
        sync = waits_for(stuck, *_KINDS)
        if sync is None or sync.facts.get("between_processes"):
            continue
        missing = [thread for thread in case.world.threads if thread.name not in stuck.threads]
        if not missing:
            continue
        plan = base.plan.changed(workers=0, start="", in_place=True, epochs=1, tolerant=False, seconds=4.0)
        trial = case.tried(plan)
        if trial is not None and trial.outcome == "hung":
            return None  # the thread would not have helped
        # the object that the user's own line names says more than the lock inside it
        named = next((s for s in stuck.syncs if case.part(s.path)), sync)
        part = case.part(named.path)
        return Finding(
            RULE,
            f"{worker_words(stuck)} waits for {named.path}, which a thread of the program serves; the worker has no such thread",
            named.path,
            (
                f"waits at {quoted(stuck.place)}",
                f"threads of the program: {', '.join(repr(t.name) for t in case.world.threads[:4])}; in the worker: "
                + (", ".join(stuck.threads) or "none"),
                *((f"made at {quoted(part.place)}",) if part and part.place else ()),
                *_shown(trial),
            ),
            PROVEN if trial is not None and trial.moved_on else LIKELY if _dead(stuck) else POSSIBLE,
            f"make {named.path} and its thread in the worker: on first use, or in worker_init_fn",
            stuck.place,
            wants=(plan,),
        )
    return None


def _dead(stuck: Stuck) -> bool:
    return any(s.facts.get("alive") in (0, False) or s.facts.get("kind") in ("queue", "future") for s in stuck.syncs)


def _shown(trial: Trial | None) -> tuple[str, ...]:
    if trial is None or not trial.moved_on:
        return ()
    return (f"in the program's own process, where the thread lives, {len(trial.samples)} samples load",)


def witness(scene: Scene) -> Finding | None:
    """A forked worker that waits for what only another thread could do, and has no other thread."""
    for jam in watching.jams(scene):
        sync = jam.sync
        if sync is None or sync.facts["kind"] not in _KINDS or sync.facts["kind"] == "loop":
            continue
        if sync.facts["between_processes"] or not jam.process.forked or jam.others:
            continue
        threads = [thread.name for thread in watching.own_threads(scene.main_of(jam.process))]
        if not threads:
            continue
        name = watching.called_on(jam) or f"a {sync.type_name or sync.facts['kind']}"
        return Finding(
            RULE,
            f"{jam.who} waits for {name}, which another thread would serve; the worker has no other thread",
            name,
            (
                f"waits at {jam.where}, for {watching.duration(jam.seconds)}",
                f"threads of the main process: {', '.join(map(repr, threads[:4]))}; in the worker: none",
                *watching.consequence(scene, jam),
            ),
            LIKELY,
            f"make {name} and its thread in the worker: on first use, or in worker_init_fn",
            jam.thread.place,
        )
    return None


def broken(DataLoader: Any) -> None:
    """An executor that was used before the fork."""
    from concurrent.futures import ThreadPoolExecutor

    from unjam.doctor.rules.programs import Numbers

    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()

    def make(index: int) -> int:
        return pool.submit(int, index).result()

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass


def fixed(DataLoader: Any) -> None:
    """One for each process."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    from unjam.doctor.rules.programs import Numbers

    pools = {os.getpid(): ThreadPoolExecutor(1)}
    pools[os.getpid()].submit(int).result()

    def make(index: int) -> int:
        pool = pools.get(os.getpid())
        if pool is None:
            pool = pools[os.getpid()] = ThreadPoolExecutor(1)
        return pool.submit(int, index).result()

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass
