"""A native library's thread pool does not survive the fork.

What happened: the program used a library that has its own threads (OpenMP, a BLAS, OpenCV, Rayon,
Arrow, gRPC …) before the workers were forked. In a worker the library assumes that its threads
still exist, gives them work, and waits forever.

Why: fork copies memory, not threads. In a forked process, a pool that was started earlier has no
threads.

How to confirm: the same trial succeeds with one native thread in each worker, or in a process that
inherits nothing.

How to fix: limit the pool in the worker before its first use, in `worker_init_fn`:
`torch.set_num_threads(1)`, `threadpoolctl.threadpool_limits(1)`, `cv2.setNumThreads(0)`; or start
workers with `multiprocessing_context="forkserver"`; or do not use the library before the loop.
Variables such as OMP_NUM_THREADS work only if they are set before the library is loaded. unjam's
own loader does not fork the program and limits the pools.

Limits: the stack of the stuck thread shows the library, but not which call inside the library
waits.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, Toggle
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, stuck_processes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ203", "native-threads-after-fork", symptom="frozen")
_BINDINGS = ("torch_python", "libtorch_python", "_multiarray_umath", "_C.cpython")


def detect(case: Case) -> Finding | None:
    """Find a worker that is stuck in native code, where a process that was not forked is not."""
    if not case.forked:
        return None
    for base, stuck in stuck_processes(case):
        if not stuck.native:
            continue
        limited, fresh = base.plan.changed(threads=1), base.plan.changed(fresh=True)
        own = base.plan.changed(workers=0, start="", in_place=True, epochs=1, tolerant=False, seconds=4.0)
        limited_trial, fresh_trial, in_place = case.tried(limited), case.tried(fresh), case.tried(own)
        tried = [t for t in (limited_trial, fresh_trial, in_place) if t is not None and t.outcome != "refused"]
        if any(t.outcome == "hung" for t in tried if t is not limited_trial):
            return None  # it hangs without the fork too
        libraries = [name for name in stuck.libraries if not name.startswith(_BINDINGS)]
        library = libraries[0] if libraries else "a native library"
        plans = (limited, fresh, *((own,) if fresh_trial is not None and fresh_trial.outcome == "refused" else ()))
        return Finding(
            RULE,
            f"{describe_worker(stuck)} waits in native code ({library}), whose threads were lost at the fork",
            f"{library}, called at {stuck.place}",
            (
                f"stuck at {quoted(stuck.place)}, in native code, {stuck.words}",
                f"libraries on its stack: {', '.join(stuck.libraries[:4])}" if stuck.libraries else "",
                f"native threads (not started by Python) at the fork: {case.process_facts.native_threads}",
            ),
            Toggle(base.plan, plans),
            _help(case, limit_helps=limited_trial is None or limited_trial.progressed),
            stuck.place,
        )
    return None


def _help(case: Case, *, limit_helps: bool) -> str:
    init = case.loader.worker_init or "a worker_init_fn"
    if not limit_helps:
        return "pass multiprocessing_context='forkserver' to the loader, or do not use the library before the loop"
    return _limit_threads(init)


def _limit_threads(init: str) -> str:
    return (
        f"limit its threads in {init}: threadpoolctl.threadpool_limits(1) (OpenMP, BLAS), torch.set_num_threads(1), "
        "cv2.setNumThreads(0); or pass multiprocessing_context='forkserver'"
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a forked worker that waits for a lock inside a native library."""
    for blocked in scenes.blocked_processes(scene):
        if not blocked.thread.native or not blocked.process.forked:
            continue
        if blocked.thread.waiting.kind != "lock" or blocked.thread.waiting.target:
            continue
        libraries = [name for name in blocked.thread.libraries if not name.startswith(_BINDINGS)]
        if not libraries:
            continue  # a lock in native code of an unknown library
        library = libraries[0]
        threads = count(len(blocked.process.threads), "thread")
        return Finding(
            RULE,
            f"{blocked.who} waits in native code ({library}), whose threads were lost at the fork",
            f"{library}, called at {blocked.thread.place}",
            blocked.evidence(
                f"libraries on its stack: {', '.join(blocked.thread.libraries[:4])}",
                f"the worker was forked and has {threads}; the pool that it waits for belongs to the main process",
            ),
            AGREES,
            _limit_threads("worker_init_fn"),
            blocked.thread.place,
        )
    return None
