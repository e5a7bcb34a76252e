"""A sample blocks on I/O without a timeout.

What happened: loading one sample waits for a socket, a pipe, a file lock, a child process or a
timer, and does not return, with workers or without.

Why: calls on sockets, pipes and child processes block forever unless they have a timeout, and with
torch's `timeout=0` the loader waits just as long.

How to confirm: the process waits at the same line with workers and without.

How to fix: give the call a timeout (`socket.settimeout`, `timeout=` of requests and subprocess,
`select`), and decide what to return for a sample without an answer. `timeout=` of the loader turns
the freeze into an error; unjam's `sample_timeout=` ends only that sample.

Limits: the doctor cannot know whether an answer would have arrived later; it waited for the number
of seconds that it names.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.waits import OneConnectionAtATime
from unjam.doctor.proof import AGREES
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, stuck_processes, waits_for
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration

RULE = Rule("UJ205", "sample-blocks", symptom="frozen")
# other rules cover waits for these
_OTHER_RULES = ("queue", "event", "barrier", "condition", "future", "executor", "loop")
_OUTSIDE = ("socket", "pipe", "file", "child", "sleep", "disk")


def words(one: OneConnectionAtATime) -> Words:
    """Say which connection is served, and which process waits."""
    return Words(
        f"{one.asks} waits for an answer from {one.server}, which serves one connection at a time and is still serving {one.served}",
        "let the server handle each connection in its own thread (ThreadingHTTPServer, ThreadingTCPServer), "
        "or close the connection after each answer",
    )


def detect(case: Case) -> Finding | None:
    """Find a stuck line that waits for something outside the process."""
    found = []
    for base, stuck in stuck_processes(case):
        outside = stuck.waits in _OUTSIDE or "descriptors" in stuck.words or "lock on the file" in stuck.words
        if stuck.native and stuck.waits not in ("file", "disk", "lock", "socket", "pipe"):
            continue
        if not outside or stuck.place is None or stuck.busy:
            continue
        if waits_for(stuck, "queue", "executor", "future", "event", "condition", "loop", "thread"):
            continue
        found.append((base, stuck))
    if not found:
        return None
    _, stuck = found[0]
    alone = any(base is case.alone and other.place == stuck.place for base, other in found)
    both = alone and (case.as_is is None or any(base is case.as_is for base, _ in found))
    where = f"sample {stuck.index}" if stuck.index else describe_worker(stuck)
    return Finding(
        RULE,
        f"{where} waits for {stuck.words}, and the wait has no timeout",
        f"{where} at {stuck.place}",
        (
            f"{describe_worker(stuck)} waits at {quoted(stuck.place)}",
            f"no progress for {count(round(min(stuck.seconds, 60)), 'second')}"
            + ("; the same line waits without workers" if both and case.loader.num_workers else ""),
            f"the loader's timeout is {case.loader.timeout:g}"
            + (": it waits forever" if not case.loader.timeout else ""),
        ),
        AGREES,
        f"give the call at {stuck.place} a timeout"
        + ("; timeout=60 in the loader turns the freeze into an error" if case.loader.num_workers else ""),
        stuck.place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a wait for a socket, a pipe, a file, a child process, or a timer."""
    for blocked in scenes.blocked_processes(scene):
        on_file = blocked.thread.waiting.kind == "lock" and blocked.thread.waiting.target is not None
        if (
            blocked.thread.waiting.kind not in (*_OUTSIDE, "terminal", "signal")
            and not on_file
            and "descriptors" not in blocked.thread.waiting.words
        ):
            continue
        if (
            blocked.sync is not None
            and blocked.sync.state.kind in _OTHER_RULES
            and not scenes.loop_waits_outside(blocked)
        ):
            continue
        words, evidence = blocked.thread.waiting.words, list(scenes.peer_words(blocked))
        if on_file and blocked.thread.peers:
            words, evidence = f"{words}, held by {blocked.thread.peers[0]}", []
        if blocked.thread.waiting.kind == "child":
            evidence += [f"its child: {line}" for line in scenes.children_words(scene, blocked)]
        if blocked.thread.waiting.kind == "sleep" and blocked.thread.waiting.limit is not None:
            words = f"a sleep to end, with {duration(blocked.thread.waiting.limit)} left"
            if scenes.polls(scene, blocked.process):
                words = f"a condition that stays false: it polled {blocked.thread.context_switches} times in {duration(scene.seconds)}"
        where = blocked.thread.place
        return Finding(
            RULE,
            f"{blocked.who} waits for {words}",
            f"{blocked.worker} at {where}",
            blocked.evidence(
                *evidence,
                "the call has no timeout" if blocked.thread.waiting.limit is None else "",
            ),
            AGREES if on_file and blocked.thread.peers else blocked.sure,
            f"give the call at {where} a timeout"
            + ("; timeout=60 in the loader turns the freeze into an error" if blocked.process.role == "worker" else ""),
            where,
        )
    return None
