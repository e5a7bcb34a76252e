"""A sample waits for something outside, and nothing ends the wait.

What happened: loading one sample waits for a socket, a pipe, a file's lock, a child process or time to pass, and does not come back, with
workers or without.

Why: sockets, pipes and child processes wait for ever unless they are given a time limit, and torch's `timeout=0` waits with them.

How to confirm: the line is the same with workers and without.

How to fix: give the call a time limit (`socket.settimeout`, `timeout=` of requests and subprocess, `select`), and decide what a sample
without an answer is worth. `timeout=` of the loader turns the freeze into an error; unjam's `sample_timeout=` ends the one sample.

Limits: whether the answer would have come later cannot be known; the doctor waited for the seconds that it names.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules import watching
from unjam.doctor.rules.judging import LIKELY, PROVEN, count, frozen, quoted, waits_for, worker_words
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ205", "sample-blocks", symptom="frozen")
_MAY_END = ("sleep", "child", "socket", "disk")  # somebody else decides
_OTHERS = ("queue", "event", "barrier", "condition", "future", "executor", "loop")  # another rule's
_OUTSIDE = ("socket", "pipe", "file", "child", "sleep", "disk")


def detect(case: Case) -> Finding | None:
    """A stuck line that waits for the world outside."""
    found = []
    for base, stuck in frozen(case):
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
    where = f"sample {stuck.index}" if stuck.index else worker_words(stuck)
    return Finding(
        RULE,
        f"{where} waits for {stuck.words}, and nothing ends the wait",
        f"{where} at {stuck.place}",
        (
            f"{worker_words(stuck)} waits at {quoted(stuck.place)}",
            f"no progress for {count(round(min(stuck.seconds, 60)), 'second')}"
            + ("; the same line waits without workers" if both and case.loader.num_workers else ""),
            f"the loader's timeout is {case.loader.timeout:g}"
            + (": it waits for ever" if not case.loader.timeout else ""),
        ),
        PROVEN if (both or (alone and not case.loader.num_workers)) and stuck.waits not in _MAY_END else LIKELY,
        f"give the call at {stuck.place} a time limit"
        + ("; timeout=60 in the loader turns the freeze into an error" if case.loader.num_workers else ""),
        stuck.place,
    )


def witness(scene: Scene) -> Finding | None:
    """A wait for a socket, a pipe, a file, a child, or time."""
    for jam in watching.jams(scene):
        on_file = jam.stuck.waits == "lock" and jam.thread.waiting.target is not None
        if (
            jam.stuck.waits not in (*_OUTSIDE, "terminal", "signal")
            and not on_file
            and "descriptors" not in jam.stuck.words
        ):
            continue
        if jam.sync is not None and jam.sync.facts["kind"] in _OTHERS and not watching.loop_waits_outside(jam):
            continue
        words, evidence = jam.stuck.words, list(watching.peers(jam))
        if on_file and jam.thread.peers:
            words, evidence = f"{words}, which {jam.thread.peers[0]} holds", []
        if jam.stuck.waits == "child":
            evidence += [f"its child: {line}" for line in watching.children_words(scene, jam)]
        if jam.stuck.waits == "sleep" and jam.thread.waiting.limit is not None:
            words = f"time to pass: it sleeps, and {watching.duration(jam.thread.waiting.limit)} are left"
            if watching.polls(scene, jam.process):
                words = (
                    f"something that does not come: it looked {jam.thread.turns} times in {scene.seconds:.1f} seconds"
                )
        where = jam.thread.place
        return Finding(
            RULE,
            f"{jam.who} waits for {words}",
            f"{worker_words(jam.stuck)} at {where}",
            (
                f"waits at {jam.where}, for {watching.duration(jam.seconds)}",
                *evidence,
                *(("the call has no time limit",) if jam.thread.waiting.limit is None else ()),
                *watching.consequence(scene, jam),
            ),
            LIKELY if on_file and jam.thread.peers else jam.sure,
            f"give the call at {where} a time limit"
            + ("; timeout=60 in the loader turns the freeze into an error" if jam.process.role == "worker" else ""),
            where,
        )
    return None


def broken(DataLoader: Any) -> None:
    """A read from a pipe that nobody writes to."""
    import os

    from unjam.doctor.rules.programs import Numbers

    read, write = os.pipe()

    def make(index: int) -> int:
        if index == 2:
            os.read(read, 1)
        return index

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass
    os.close(write)


def fixed(DataLoader: Any) -> None:
    """With a limit."""
    import os
    import select

    from unjam.doctor.rules.programs import Numbers

    read, write = os.pipe()

    def make(index: int) -> int:
        if index == 2 and select.select([read], [], [], 0.01)[0]:
            os.read(read, 1)
        return index

    for _ in DataLoader(Numbers(8, make), batch_size=4, num_workers=1):
        pass
    os.close(write)
