"""Wait chains: who waits for what, and why the wait never ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts import roles
from unjam.doctor.facts.scene import Process, Scene, Thread
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Place
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.proof import AGREES


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWaitsForItself(Explanation):
    """Every thread of a pool waits for a task of the same pool."""

    threads: int
    line: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPipe(Explanation):
    """A process waits to write into a pipe that only the process reads that waits for it."""

    writer: str
    reader: str
    line: Place | None
    at_end: bool  # the reader waits for the writer's end


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain the waits of a frozen program."""
    scene = known.watched.scene
    if known.watched.outcome == "frozen" and scene is not None:
        yield from explain_scene(scene)


def explain_scene(scene: Scene) -> Iterator[Explanation]:
    """Explain the waits of a running program."""
    for process in scene.processes:
        if process.threads and not process.ended:
            yield from _pool(process)
            yield from _pipe(scene, process)


def _pool(process: Process) -> Iterator[Explanation]:
    workers = [one for one in process.threads if roles.at(one.frames, "concurrent/futures/thread.py", "_worker") >= 0]
    stuck = [one for one in workers if _waits_for_future(one)]
    if not stuck or len(stuck) < len(workers) or not _waits_for_future(process.thread):
        return
    places = [one.place for one in stuck if one.place is not None]
    if not places:
        return
    place, outer = places[0], process.thread.place
    yield PoolWaitsForItself(
        culprit=f"{_called(place) or 'the pool'} at {place}",
        place=place,
        because=(
            f"all {count(len(workers), 'thread')} of the pool wait at {quoted(place)}",
            "what they wait for are tasks of the pool, for which no thread is left",
            *((f"{process.name} waits at {quoted(outer)}",) if outer is not None else ()),
        ),
        basis=AGREES,
        threads=len(workers),
        line=place,
        accounts_for=("frozen",),
    )


def _called(place: Place) -> str:
    """The object whose method a line calls, before `.map(`, `.submit(` or `.result(`."""
    text = quoted(place).partition(": ")[2]
    for method in (".map(", ".submit(", ".result("):
        if method in text:
            return text.partition(method)[0].split()[-1].strip("([=")
    return ""


def _waits_for_future(thread: Thread) -> bool:
    return roles.at(
        thread.frames, "concurrent/futures/_base.py", "result", "result_iterator", "wait", "_result_or_cancel"
    ) >= 0 or any(
        frame.function in ("result", "_result_or_cancel", "wait") and roles.named(frame, "concurrent/futures/_base.py")
        for frame in thread.frames
    )


def _pipe(scene: Scene, reader: Process) -> Iterator[Explanation]:
    """Find a child that cannot write, and whose reader waits for another of its pipes, or for its end."""
    thread = reader.thread
    for child in scene.children(reader):
        if child.ended or not child.threads:
            continue
        writing = next((one for one in child.threads if one.waiting.writes and one.waiting.kind == "pipe"), None)
        if writing is None or reader.pid not in writing.peer_pids:
            continue
        waits_for_child = thread.waiting.kind == "child" or child.pid in thread.peer_pids
        if not waits_for_child:
            continue
        yield FullPipe(
            culprit=f"{child.name} at {thread.place}" if thread.place else child.name,
            place=thread.place,
            because=(
                f"{child.name} waits for room in a pipe: {writing.waiting.words}",
                f"only {reader.name} can read that pipe, and it waits at {quoted(thread.place)}: {thread.waiting.words}",
            ),
            basis=AGREES,
            writer=child.name,
            reader=reader.name,
            line=thread.place,
            at_end=thread.waiting.kind == "child",
            accounts_for=("frozen",),
        )
        return
