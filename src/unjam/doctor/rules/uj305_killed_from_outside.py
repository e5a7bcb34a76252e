"""A worker was killed by a signal from the program or from outside.

What happened: a worker was ended by SIGKILL, SIGTERM or another signal that does not come from a
crash, and the system's counter of out-of-memory kills did not change.

Why: code of the dataset sends signals (a watchdog, a timeout with `signal.alarm`), or a scheduler
enforces a limit on processor time, or a supervisor or a person sent the signal.

How to confirm: check whether the same sample ends the worker again.

How to fix: find the sender. `signal.alarm` ends a worker with SIGALRM unless the worker itself sets
a handler.

Limits: an out-of-memory kill from outside the container may not change any counter that can be read
inside it.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import basis_without_samples, dead_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.doctor.rules.uj302_native_crash import SIGNALS
from unjam.units import count, duration

RULE = Rule("UJ305", "killed-from-outside", symptom="died")


def detect(case: Case) -> Finding | None:
    """Find a process ended by a signal that comes neither from a crash nor from a lack of memory."""
    killed = [
        (t, e)
        for t, e in dead_processes(case)
        if e.signal and e.signal not in SIGNALS and e.signal != "SIGBUS" and not e.out_of_memory
    ]
    if not killed:
        return None
    _, end = killed[0]
    where = f"sample {end.index}" if end.index else "a worker"
    return Finding(
        RULE,
        f"{end.signal} ends the process in {where}; memory did not run out",
        f"{where} at {end.place}" if end.place else f"{where} of {case.loader.dataset}",
        (
            f"worker {end.worker} ended by {end.signal} in {where}"
            if end.worker >= 0
            else f"ended by {end.signal} in {where}",
            *line_evidence("at", end.place),
            "in the meantime no process was killed for lack of memory",
        ),
        basis_without_samples(case, (one.index for _, one in killed)),
        f"find what sends {end.signal}: a timeout or watchdog in {case.loader.dataset}, or a scheduler",
        end.place or case.loader.dataset_place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a main process that waits for work that a dead worker had."""
    for main in scene.mains:
        workers = scene.workers(main)
        dead = [one for one in scene.processes if one.ended and one.parent == main.pid]
        replacements = scenes.replacement_workers(workers)
        idle = all(one.activity.stage == "idle" for one in workers if not one.ended)
        if main.activity.stage not in ("waits", "stopping") or not (dead or (replacements and idle)):
            continue
        if main.thread.computes or not main.thread.steady:
            continue
        who = ", ".join(one.name for one in dead) or f"the worker that pid {replacements[0].pid} replaced"
        return Finding(
            RULE,
            f"{who} is dead, and {main.name} still waits for its work",
            who,
            (
                f"waits at {quoted(main.thread.place)}",
                f"{count(len(dead), 'zombie process', 'zombie processes')}, not reaped" if dead else "",
                *(
                    (
                        f"pid {replacements[0].pid} started later than the first worker, by "
                        + duration(max(one.age for one in workers) - replacements[0].age),
                        "a worker was replaced, and its task is lost",
                    )
                    if replacements
                    else ()
                ),
                f"out-of-memory kills on this machine so far: {scene.kills}" if scene.kills else "",
                *scenes.silence_words(main),
            ),
            AGREES,
            "find out what killed it (dmesg, the cluster's memory limit); concurrent.futures.ProcessPoolExecutor and unjam's "
            "loader detect a dead worker, multiprocessing.Pool does not",
            main.thread.place,
        )
    return None
