"""The loader is fine; the main process waits for something else.

What happened: the main process is not waiting for a batch. It waits in the training step, or
between two steps: for another rank, for the reader of a pipe that it prints to, for somebody to
type, for a lock, a thread, a child process, a checkpoint's file.

Why: a frozen training looks the same from the terminal, whatever froze it, and people usually
suspect the loader.

How to confirm: the evidence here is the main process's own stack; its workers are idle or ahead.

How to fix: follow the evidence: read the pipe or send the output to a file, answer the prompt, look
at the rank that is missing, give the wait a time limit.

Limits: a wait that would end by itself looks like one that would not; the seconds are given.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.scene import Process, Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms import scenes
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.mechanisms.waits import ExitWaits, TerminationWithoutEffect
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ211", "main-process-waits", symptom="frozen", live=True)


NAMES = (ExitWaits, TerminationWithoutEffect)


def words(one: ExitWaits | TerminationWithoutEffect) -> Words:
    """Say which child does not end."""
    if isinstance(one, TerminationWithoutEffect):
        does = "ignores it" if one.ignores else "has inherited a handler for it, and goes on"
        return Words(
            f"{one.waiter} sends SIGTERM to {one.child} and waits for its end, but that process {does}",
            "set signal.signal(SIGTERM, SIG_DFL) first thing in the child; or tell it to end by an Event, or use kill()",
        )
    why = "ignores SIGTERM" if one.ignores else "does not end"
    return Words(
        f"the program has finished but cannot exit: {one.child} {why}",
        "shut the workers down before the program ends: delete the loader and its iterator, or leave persistent_workers off"
        + ("; do not ignore SIGTERM in workers" if one.ignores else ""),
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a main process that waits outside its loader."""
    alone = len(scene.mains) == 1
    for main in scene.mains:
        if _may_wait_for_a_gpu(main):
            return _gpu_finding(main)
        finding = _cannot_exit(scene, main)
        if finding is not None:
            return finding
        if not is_elsewhere(scene, main) or (stack_activity.collective(main.thread.frames) and not alone):
            continue
        blocked = scenes.blocked_process(scene, main, main.thread)
        threads = scenes.stuck_threads(scene, main)
        if threads is None and _waits_for_own_thread(blocked) and not main.thread.holders:
            continue  # it waits for a thread of its own that makes progress
        what, help_text = _wait_words(scene, main, blocked)
        workers = [one for one in scene.workers(main) if not one.ended]
        idle = sum(one.activity.stage in ("idle", "send") for one in workers)
        return Finding(
            RULE,
            f"the loader is fine; {main.name} waits for {what}",
            f"{main.thread.place}",
            (
                f"at {quoted(main.thread.place)}, for {duration(blocked.seconds)}",
                *(scenes.thread_words(one) for one in (threads or [])[:3] if _waits_for_own_thread(blocked)),
                *scenes.peer_words(blocked),
                *(
                    (f"its child: {line}" for line in scenes.children_words(scene, blocked))
                    if blocked.stuck.waits == "child"
                    else ()
                ),
                *(
                    (f"{idle} of {count(len(workers), 'worker')} idle: they have done all that they may do ahead",)
                    if workers
                    else ()
                ),
            ),
            AGREES
            if blocked.seconds >= scenes.NO_ACCIDENT or blocked.stuck.waits in ("terminal", "lock", "pipe")
            else SUGGESTED,
            help_text,
            main.thread.place,
        )
    return None


def _waits_for_own_thread(blocked: scenes.BlockedProcess) -> bool:
    """Whether a thread of the same process could end the wait."""
    if blocked.sync is not None:
        return bool(blocked.sync.state.kind != "child")
    return blocked.stuck.waits == "lock" and not blocked.thread.native


def _cannot_exit(scene: Scene, main: Process) -> Finding | None:
    """Find a program that has ended and cannot exit, because Python waits for its threads."""
    if not main.threads or stack_activity.find_frame(main.thread.frames, "threading.py", "_shutdown") < 0:
        return None
    stuck = scenes.stuck_threads(scene, main)
    if not stuck:
        return None
    return Finding(
        RULE,
        f"{main.name} is over and cannot leave: {scenes.thread_words(stuck[0])}",
        f"thread {stuck[0].thread.name!r}",
        (f"for {duration(stuck[0].seconds)}", *(scenes.thread_words(one) for one in stuck[1:3])),
        AGREES,
        "tell the thread to end before the program does, or make it a daemon",
        stuck[0].thread.place,
    )


def is_elsewhere(scene: Scene, main: Process) -> bool:
    """Whether a main process waits for something other than its loader."""
    if not main.threads or main.ended or main.activity.stage != "elsewhere" or main.thread.place is None:
        return False
    if main.thread.waiting.kind == "sleep" and not main.thread.native:
        return False  # the program called sleep
    distributed = bool(stack_activity.collective(main.thread.frames)) and main.thread.steady
    return scenes.is_blocked(scene, main, main.thread) or (distributed and not main.thread.ends_soon)


def _may_wait_for_a_gpu(main: Process) -> bool:
    """Whether the main process may wait for a GPU.

    Such a wait spins: the process has a GPU open and uses a processor at one line all the time.
    """
    busy = main.gpu and main.activity.stage == "elsewhere" and bool(main.threads) and main.thread.computes
    return busy and main.thread.steady and main.thread.place is not None


def _gpu_finding(main: Process) -> Finding:
    return Finding(
        RULE,
        f"the loader is fine; {main.name} waits for the GPU, or computes",
        f"{main.thread.place}",
        (
            f"every look found it at {quoted(main.thread.place)}, with {main.thread.busy:.0%} of a processor",
            "a wait for a GPU looks like computing from outside: nvidia-smi tells which",
        ),
        SUGGESTED,
        "if it is always this line, look at what was given to the GPU before it (a kernel, a collective operation of another rank)",
        main.thread.place,
        severity=Severity.NOTE,
    )


def _wait_words(scene: Scene, main: Process, blocked: scenes.BlockedProcess) -> tuple[str, str]:
    wait, place = main.thread.waiting, main.thread.place
    together = stack_activity.collective(main.thread.frames)
    if together:
        return (
            f"another rank, in {together}",
            "look at the rank that has not come: `unjam why` on its machine names what holds it",
        )
    if wait.kind == "terminal" or (wait.fds == (0,) and not wait.writes):
        return f"somebody to type: {wait.words}", f"answer it, or take the prompt or breakpoint at {place} out"
    if wait.writes and wait.kind in ("pipe", "socket", "terminal"):
        return (
            f"{wait.words}: nobody reads what it prints",
            "read from that pipe, or send the output to a file",
        )
    sync = blocked.sync
    if wait.kind == "lock" and sync is None:
        holder = next(iter(main.thread.holders), None)
        name = scenes.lock_name(blocked)
        if holder is not None and holder.itself:
            return f"{name}, which it holds itself already (since {quoted(holder.place)})", "do not take it twice"
        if holder is not None:
            return f"{name}, which thread {holder.thread!r} holds at {quoted(holder.place)}", "look at that thread"
        if main.thread.native:
            library = next(iter(main.thread.libraries), "a library")
            return (
                f"something inside {library}",
                f"look at the call at {place}; a GPU, a rank or a library's thread does not answer",
            )
        return name, f"look at who takes {name} and does not give it back"
    if sync is not None:
        name = scenes.called_on(blocked) or sync.type_name
        threads = ", ".join(repr(one.name) for one in scenes.own_threads(main)[:3])
        return f"{name} ({sync.state.kind})", f"look at who should serve {name}" + (
            f"; its threads: {threads}" if threads else ""
        )
    return wait.words, f"give the call at {place} a time limit"
