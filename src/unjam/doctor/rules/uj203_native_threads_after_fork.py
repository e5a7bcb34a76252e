"""A library's thread pool does not survive the fork.

What happened: the program used a library with threads of its own (OpenMP, a BLAS, OpenCV, Rayon, Arrow, gRPC …) before the workers were
forked. In a worker the library believes that its threads still exist, gives them work, and waits for ever.

Why: fork copies memory, not threads; a pool started before it is dead after it.

How to confirm: the same trial with one native thread in each worker, or in a process that inherits nothing, goes through.

How to fix: cap the pool in the worker before its first use, in `worker_init_fn`: `torch.set_num_threads(1)`,
`threadpoolctl.threadpool_limits(1)`, `cv2.setNumThreads(0)`; or start workers with `multiprocessing_context="forkserver"`; or do not
use the library before the loop. Variables such as OMP_NUM_THREADS work only if they are set before the library is loaded. unjam's own loader
does not fork the program and caps the pools.

Limits: the library is known by the code on the stuck thread's stack; which call inside it waits is not.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules import watching
from unjam.doctor.rules.judging import LIKELY, PROVEN, count, frozen, gone_words, proof, quoted, worker_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ203", "native-threads-after-fork", symptom="frozen")
_PYTHONS = ("torch_python", "libtorch_python", "_multiarray_umath", "_C.cpython")


def detect(case: Case) -> Finding | None:
    """A worker stuck in native code that a process without the fork's inheritance gets through."""
    if not case.forked:
        return None
    for base, stuck in frozen(case):
        if not stuck.native:
            continue
        capped, fresh = base.plan.changed(threads=1), base.plan.changed(fresh=True)
        own = base.plan.changed(workers=0, start="", in_place=True, epochs=1, tolerant=False, seconds=4.0)
        with_cap, anew, in_place = case.tried(capped), case.tried(fresh), case.tried(own)
        tried = [t for t in (with_cap, anew, in_place) if t is not None and t.outcome != "refused"]
        if any(t.outcome == "hung" for t in tried if t is not with_cap):
            return None  # not the fork's doing
        trial = next((t for t in tried if t.moved_on), None)
        libraries = [name for name in stuck.libraries if not name.startswith(_PYTHONS)]
        library = libraries[0] if libraries else "a native library"
        confidence = proof(case, base, trial)
        return Finding(
            RULE,
            f"{worker_words(stuck)} waits in native code ({library}) whose threads were lost at the fork",
            f"{library}, called at {stuck.place}",
            (
                f"stuck at {quoted(stuck.place)}, in native code, {stuck.words}",
                *((f"libraries on its stack: {', '.join(stuck.libraries[:4])}",) if stuck.libraries else ()),
                f"threads that no Python code started, at the fork: {case.world.native_threads}",
                *gone_words(with_cap),
                *gone_words(anew),
                *gone_words(in_place),
            ),
            confidence,
            _help(case, proven=confidence is PROVEN, capped=with_cap is not None and with_cap.moved_on),
            stuck.place,
            wants=(capped, fresh, *((own,) if anew is not None and anew.outcome == "refused" else ())),
        )
    return None


def _help(case: Case, *, proven: bool, capped: bool) -> str:
    init = case.loader.worker_init or "a worker_init_fn"
    if proven and not capped:
        return "pass multiprocessing_context='forkserver' to the loader, or do not use the library before the loop"
    return (
        f"cap its threads in {init}: threadpoolctl.threadpool_limits(1) (OpenMP, BLAS), torch.set_num_threads(1), "
        "cv2.setNumThreads(0); or pass multiprocessing_context='forkserver'"
    )


def witness(scene: Scene) -> Finding | None:
    """A forked worker that waits for a lock inside a native library."""
    for jam in watching.jams(scene):
        if not jam.thread.native or jam.stuck.waits != "lock" or not jam.process.forked or jam.thread.waiting.target:
            continue
        libraries = [name for name in jam.thread.libraries if not name.startswith(_PYTHONS)]
        if not libraries:
            continue  # a lock in native code, and nobody knows whose
        library = libraries[0]
        threads = count(len(jam.process.threads), "thread")
        return Finding(
            RULE,
            f"{jam.who} waits in native code ({library}) whose threads were lost at the fork",
            f"{library}, called at {jam.thread.place}",
            (
                f"waits at {jam.where}, for {watching.duration(jam.seconds)}",
                *((f"libraries on its stack: {', '.join(jam.thread.libraries[:4])}",) if jam.thread.libraries else ()),
                f"the worker was forked and has {threads}; the pool that it waits for belongs to the main process",
                *watching.consequence(scene, jam),
            ),
            LIKELY,
            "cap its threads in worker_init_fn: threadpoolctl.threadpool_limits(1) (OpenMP, BLAS), torch.set_num_threads(1), "
            "cv2.setNumThreads(0); or pass multiprocessing_context='forkserver'",
            jam.thread.place,
        )
    return None


def broken(DataLoader: Any) -> None:
    """OpenMP used before the fork, and with threads again after it."""
    import torch

    from unjam.doctor.rules.programs import Numbers

    big = torch.ones(4_000_000)
    torch.set_num_threads(2)
    (big * 2).sum()

    def make(index: int) -> float:
        torch.set_num_threads(2)
        return float((big * index).sum())

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass


def fixed(DataLoader: Any) -> None:
    """One thread in the worker, as torch sets it."""
    import torch

    from unjam.doctor.rules.programs import Numbers

    big = torch.ones(4_000_000)
    torch.set_num_threads(2)
    (big * 2).sum()

    def make(index: int) -> float:
        return float((big * index).sum())

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass
