"""The main process is blocked outside the loader.

What happened: the main process is not waiting for a batch. It waits in the training step, or
between two steps: for another rank, for the reader of a pipe that it prints to, for terminal input,
for a lock, a thread, a child process or a checkpoint file.

Why: a frozen training run looks the same in the terminal, whatever the cause, and the loader is
usually suspected first.

How to confirm: the evidence is the main process's own stack; its workers are idle or have their
batches ready.

How to fix: follow the evidence: read the pipe or send the output to a file, answer the prompt, look
at the rank that is missing, give the wait a timeout.

Limits: a wait that would end looks like one that would not; the finding says how long it has
lasted.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.scene import Process, Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.waits import ExitWaits, TerminationWithoutEffect
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.queries import scenes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration

RULE = Rule("UJ211", "main-process-waits", symptom="frozen")


def words(one: ExitWaits | TerminationWithoutEffect) -> Words:
    """Say which child does not end."""
    if isinstance(one, TerminationWithoutEffect):
        reaction = "ignores the signal" if one.ignores else "has inherited a handler for it and keeps running"
        return Words(
            f"{one.waiter} sends SIGTERM to {one.child} and waits for it to end, but that process {reaction}",
            "call signal.signal(SIGTERM, SIG_DFL) at the start of the child; or stop it with an Event, or use kill()",
        )
    why = "ignores SIGTERM" if one.ignores else "does not end"
    return Words(
        f"the program has finished but cannot exit: {one.child} {why}",
        "shut the workers down before the program ends: delete the loader and its iterator, or do not use persistent_workers"
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
        blocked = scenes.BlockedProcess(scene, main, main.thread)
        threads = scenes.stuck_threads(scene, main)
        if threads is None and _waits_for_own_thread(blocked) and not main.thread.holders:
            continue  # one of its own threads makes progress and may end the wait
        what, help_text = _wait_words(blocked)
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
                    if blocked.thread.waiting.kind == "child"
                    else ()
                ),
                f"{idle} of {count(len(workers), 'worker')} idle: the prefetch queue is full" if workers else "",
            ),
            AGREES
            if blocked.seconds >= scenes.NO_ACCIDENT or blocked.thread.waiting.kind in ("terminal", "lock", "pipe")
            else SUGGESTED,
            help_text,
            main.thread.place,
        )
    return None


def _waits_for_own_thread(blocked: scenes.BlockedProcess) -> bool:
    """Whether a thread of the same process could end the wait."""
    if blocked.sync is not None:
        return bool(blocked.sync.state.kind != "child")
    return blocked.thread.waiting.kind == "lock" and not blocked.thread.native


def _cannot_exit(scene: Scene, main: Process) -> Finding | None:
    """Find a program that has ended and cannot exit, because Python waits for its threads."""
    if not main.threads or stack_activity.find_frame(main.thread.frames, "threading.py", "_shutdown") < 0:
        return None
    stuck = scenes.stuck_threads(scene, main)
    if not stuck:
        return None
    return Finding(
        RULE,
        f"{main.name} has finished but cannot exit: {scenes.thread_words(stuck[0])}",
        f"thread {stuck[0].thread.name!r}",
        (f"for {duration(stuck[0].seconds)}", *(scenes.thread_words(one) for one in stuck[1:3])),
        AGREES,
        "stop the thread before the program ends, or make it a daemon",
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

    Such a wait spins: the process has a GPU open and keeps a processor busy at one line.
    """
    busy = main.gpu and main.activity.stage == "elsewhere" and bool(main.threads) and main.thread.computes
    return busy and main.thread.steady and main.thread.place is not None


def _gpu_finding(main: Process) -> Finding:
    return Finding(
        RULE,
        f"the loader is fine; {main.name} waits for the GPU, or computes",
        f"{main.thread.place}",
        (
            f"every sample of its stack shows {quoted(main.thread.place)}, using {main.thread.busy:.0%} of a processor",
            "from outside, a wait for a GPU looks like computing: check nvidia-smi",
        ),
        SUGGESTED,
        "if it stays at this line, look at what was launched on the GPU before it (a kernel, a collective operation of another rank)",
        main.thread.place,
        severity=Severity.NOTE,
    )


def _wait_words(blocked: scenes.BlockedProcess) -> tuple[str, str]:
    main = blocked.process
    wait, place = main.thread.waiting, main.thread.place
    operation = stack_activity.collective(main.thread.frames)
    if operation:
        return (
            f"another rank, in {operation}",
            "look at the rank that is missing: `unjam why` on its machine names what blocks it",
        )
    if wait.kind == "terminal" or (wait.fds == (0,) and not wait.writes):
        return f"terminal input: {wait.words}", f"answer the prompt, or remove the prompt or breakpoint at {place}"
    if wait.writes and wait.kind in ("pipe", "socket", "terminal"):
        return (
            f"{wait.words}: no process reads its output",
            "read from that pipe, or send the output to a file",
        )
    sync = blocked.sync
    if wait.kind == "lock" and sync is None:
        holder = next(iter(main.thread.holders), None)
        name = scenes.lock_name(blocked)
        if holder is not None and holder.itself:
            return f"{name}, which it already holds (acquired at {quoted(holder.place)})", "do not acquire it twice"
        if holder is not None:
            return f"{name}, which thread {holder.thread!r} holds at {quoted(holder.place)}", "look at that thread"
        if main.thread.native:
            library = next(iter(main.thread.libraries), "a library")
            return (
                f"something inside {library}",
                f"look at the call at {place}: a GPU, another rank or a library's thread does not respond",
            )
        return name, f"find the code that acquires {name} and does not release it"
    if sync is not None:
        name = scenes.called_on(blocked) or sync.type_name
        threads = ", ".join(repr(one.name) for one in scenes.own_threads(main)[:3])
        return f"{name} ({sync.state.kind})", f"find the thread or process that should serve {name}" + (
            f"; its threads: {threads}" if threads else ""
        )
    return wait.words, f"give the call at {place} a timeout"
