"""Wait chains: which process waits for what, and why the wait never ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.scene import Process, Scene, Thread
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.source_places import attribute_calls, function_at
from unjam.doctor.facts.trial import Place, place_of
from unjam.doctor.proof import SUGGESTED
from unjam.units import every


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWaitsForItself(Explanation):
    """Every thread of a pool waits for a task of the same pool."""

    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPipe(Explanation):
    """A process cannot write to a full pipe, because the process that should read the pipe waits for it."""

    writer: str
    reader: str
    at_end: bool  # the reader waits until the writer ends
    queue: bool  # the pipe belongs to a multiprocessing queue


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenProgram(Explanation):
    """The program makes no progress, and no other mechanism explains it. when: relative to the loading."""

    who: str
    waits: str
    when: str
    computes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTakenWhole(Explanation):
    """A pool reads its whole input before it returns the first result, but the input is endless. pool: "Executor" or "Pool"."""

    who: str
    pool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitWaits(Explanation):
    """The program is exiting and waits for a child that does not end. ignores: the child ignores SIGTERM."""

    child: str
    ignores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationWithoutEffect(Explanation):
    """A process sent SIGTERM to a child and waits for its end, but the child continues. ignores: or else it has a handler."""

    waiter: str
    child: str
    ignores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InputNeverEnds(Explanation):
    """A child waits for the end of its input, which never comes, because processes have the other end of the pipe open.

    holders: these processes. own: it is only the process that waits for the child.
    """

    child: str
    waiter: str
    holders: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerNeverEnds(Explanation):
    """A thread waits to put an item into a full queue, and the consumer waits until the thread ends."""

    thread: str
    puts: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class OneConnectionAtATime(Explanation):
    """A server of the program serves one connection until it closes, and several workers keep their connections open."""

    server: str
    served: str
    asks: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain the waits of a frozen program."""
    scene = known.watched.scene
    if known.watched.outcome == "frozen" and scene is not None:
        yield from explain_scene(scene)
        yield from _exit(known, scene)
        yield from _standstill(known, scene)


def _exit(known: Knowledge, scene: Scene) -> Iterator[Explanation]:
    """Find a main process that waits for a child while it exits."""
    for main in scene.mains:
        if (
            not main.threads
            or stack_activity.find_frame(main.thread.frames, "multiprocessing/util.py", "_exit_function") < 0
        ):
            continue
        child = next((one for one in scene.children(main) if not one.ended and one.role != "helper"), None)
        if child is None or main.thread.waiting.kind != "child":
            continue
        loader = next((one for one in known.watched.loaders if child.pid in one.worker_pids), None)
        place = _ignores_at(loader.source_files) if loader is not None and child.ignores_sigterm else None
        does = child.thread.waiting.phrase if child.threads else "could not be examined"
        yield ExitWaits(
            culprit=f"{child.name} at {place}" if place is not None else child.name,
            place=place or (loader.made if loader is not None else None),
            because=(
                f"{main.name} is exiting: multiprocessing has sent SIGTERM to its children and waits for them",
                f"{child.name} does not end: it {'ignores SIGTERM' if child.ignores_sigterm else does}",
                f"SIGTERM is set to be ignored at {quoted(place)}" if place is not None else "",
                f"it is a worker of {loader.name}" if loader is not None else "",
            ),
            child=child.name,
            ignores=child.ignores_sigterm,
            accounts_for=("frozen",),
        )
        return


def _ignores_at(files: list[str]) -> Place | None:
    """The line that sets how a process handles SIGTERM."""
    calls = [at for file in files for at in attribute_calls(file, ("signal", "sigaction", "pthread_sigmask"))]
    return next((at for at in calls if "SIGTERM" in quoted(at)), None)


def _standstill(known: Knowledge, scene: Scene) -> Iterator[Explanation]:
    """Describe where the main process waits, and what the other processes wait for."""
    main = next((one for one in scene.mains if one.threads), None)
    if main is None:
        return
    place = main.thread.place
    others = [
        one for one in scene.processes if one is not main and one.threads and not one.ended and one.role != "helper"
    ]
    loaders = known.watched.loaders
    over = bool(loaders) and all(epoch.over for loader in loaders for epoch in loader.epochs)
    yield FrozenProgram(
        culprit=f"{place}" if place is not None else main.name,
        place=place,
        because=(
            f"{main.name} {main.thread.waiting.phrase}" + (f", at {quoted(place)}" if place is not None else ""),
            *(
                f"{one.name} {one.thread.waiting.phrase}"
                + (f", at {quoted(one.thread.place)}" if one.thread.place else "")
                for one in others[:MOST_OTHERS]
            ),
        ),
        basis=SUGGESTED,
        who=main.name,
        waits=main.thread.waiting.words,
        computes=main.thread.waiting.kind == "nothing",
        when="before it uses a loader" if not loaders else "after its last batch" if over else "while it loads",
        accounts_for=("frozen",),
    )


MOST_OTHERS = 4


def explain_scene(scene: Scene) -> Iterator[Explanation]:
    """Explain the waits of a running program."""
    for process in scene.processes:
        if process.threads and not process.ended:
            yield from _pool(process)
            yield from _taken_whole(process)
            yield from _input(scene, process)
            # a child that handles SIGTERM does not end, whatever the state of its pipes
            ended = list(_terminated(scene, process))
            yield from ended or _pipe(scene, process)
            yield from _server(scene, process)
            yield from _producer(process)


TERMINATES = ("terminate", "send_signal", "kill")


def _terminated(scene: Scene, waiter: Process) -> Iterator[Explanation]:
    """Find a wait for a child to which the same function has sent SIGTERM, without effect."""
    place = waiter.thread.place
    child = _awaited(scene, waiter)
    if place is None or child is None or not (child.ignores_sigterm or child.handles_sigterm):
        return
    sent = next((at for at in attribute_calls(place.file, TERMINATES) if function_at(at) == function_at(place)), None)
    if sent is None or sent.line > place.line or "SIGKILL" in quoted(sent):
        return
    handled = _ignores_at([place.file])
    yield TerminationWithoutEffect(
        culprit=f"{line_of(handled)} at {handled}" if handled is not None else child.name,
        place=handled or sent,
        because=(
            f"{waiter.name} sends SIGTERM at {quoted(sent)}, then waits for {child.name} to end at {quoted(place)}",
            f"{child.name} {'ignores SIGTERM' if child.ignores_sigterm else 'has a handler for SIGTERM'} and continues",
            f"set at {quoted(handled)}; forked processes inherit it" if handled is not None else "",
        ),
        waiter=waiter.name,
        child=child.name,
        ignores=child.ignores_sigterm,
        accounts_for=("frozen",),
    )


def _awaited(scene: Scene, waiter: Process) -> Process | None:
    """The child that a process waits for."""
    if waiter.thread.waiting.kind != "child":
        return None
    found = [one for one in scene.children(waiter) if not one.ended and one.role != "helper" and one.threads]
    named = next((one for one in found if waiter.thread.waiting.target == f"pid {one.pid}"), None)
    return named or next((one for one in found if one.role == "child"), found[0] if found else None)


def _input(scene: Scene, waiter: Process) -> Iterator[Explanation]:
    """Find a child that waits for more input, which the process that waits for it will not send."""
    child, place = _awaited(scene, waiter), waiter.thread.place
    if child is None or child.thread.waiting.kind != "pipe" or child.thread.waiting.writes:
        return
    holders = [one for pid in child.thread.peer_pids if pid != child.pid and (one := scene.find(pid)) is not None]
    if not holders:
        return
    own = any(one is waiter for one in holders)
    others = [one for one in holders if one is not waiter]
    said = ", ".join(one.name for one in (others or holders)[:4])
    yield InputNeverEnds(
        culprit=f"{child.name} at {place}" if place is not None else child.name,
        place=place,
        because=(
            f"{waiter.name} waits for {child.name} to end, at {quoted(place)}",
            f"{child.name} waits for more input or for the end of its input: {child.thread.waiting.words}",
            f"the write end of that pipe is still open in {said}" + (", forked while it was open" if others else ""),
        ),
        child=child.name,
        waiter=waiter.name,
        holders=said,
        own=own and not others,
        accounts_for=("frozen",),
    )


def _server(scene: Scene, asks: Process) -> Iterator[Explanation]:
    """Find a server thread that serves one connection at a time, while another process waits for its answer."""
    thread = asks.thread
    if thread.waiting.kind != "socket" or thread.peer_pids or asks.role != "worker" or thread.waiting.limit is not None:
        return
    for server in scene.processes:
        for one in server.threads:
            served = [scene.find(pid) for pid in one.peer_pids if pid not in (asks.pid, server.pid)]
            idle = next((other for other in served if other is not None and other.threads), None)
            if one.waiting.kind != "socket" or idle is None or one.waiting.writes:
                continue
            yield OneConnectionAtATime(
                culprit=f"thread {one.name!r} of {server.name}",
                place=one.place or thread.place,
                because=(
                    f"{asks.name} waits for {thread.waiting.words}, at {quoted(thread.place)}; its connection has not been accepted",
                    f"thread {one.name!r} of {server.name} waits for the next request from {idle.name}: {one.waiting.words}",
                    f"{idle.name} sends no request: it {idle.thread.waiting.phrase}",
                ),
                server=f"thread {one.name!r} of {server.name}",
                served=idle.name,
                asks=asks.name,
                accounts_for=("frozen",),
            )
            return


def _producer(process: Process) -> Iterator[Explanation]:
    """Find a thread that waits for space in a queue, while the main thread waits for that thread to end."""
    if stack_activity.find_frame(process.thread.frames, "threading.py", "join") < 0:
        return
    producer = next(
        (one for one in process.threads[1:] if stack_activity.find_frame(one.frames, "queue.py", "put") >= 0), None
    )
    if producer is None or producer.place is None:
        return
    place = process.thread.place
    yield ProducerNeverEnds(
        culprit=f"{line_of(place) or 'join()'} at {place}",
        place=place,
        because=(
            f"{process.name} waits for thread {producer.name!r} to end, at {quoted(place)}",
            f"that thread waits for space in a full queue, at {quoted(producer.place)}",
            "no thread takes items from that queue",
        ),
        thread=producer.name,
        puts=producer.place,
        accounts_for=("frozen",),
    )


def _pool(process: Process) -> Iterator[Explanation]:
    workers = [
        one
        for one in process.threads
        if stack_activity.find_frame(one.frames, "concurrent/futures/thread.py", "_worker") >= 0
    ]
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
            f"{every(len(workers), 'thread')} of the pool wait{'s' * (len(workers) == 1)} at {quoted(place)}",
            "the awaited results are tasks of the same pool, which has no free thread to run them",
            f"{process.name} waits at {quoted(outer)}" if outer is not None else "",
        ),
        threads=len(workers),
        accounts_for=("frozen",),
    )


TAKES_ALL = (
    ("Executor", "concurrent/futures/_base.py", ("map", "<listcomp>")),
    ("Executor", "concurrent/futures/process.py", ("map",)),
    ("Pool", "multiprocessing/pool.py", ("map", "starmap", "map_async", "_map_async")),
)


def _taken_whole(process: Process) -> Iterator[Explanation]:
    """Find a process that computes inside a pool's `map`, which reads its whole input first."""
    thread = process.thread
    if thread.waiting.kind != "nothing" or not thread.computes:
        return
    for pool, file, functions in TAKES_ALL:
        at = stack_activity.find_frame(thread.frames, file, *functions)
        place = place_of(thread.frames[at:]) if at >= 0 else None
        if place is None:
            continue
        yield InputTakenWhole(
            culprit=f"{line_of(place) or 'map()'} at {place}",
            place=place,
            because=(
                f"{process.name} computes inside {pool}.map, at {quoted(place)}",
                f"{pool}.map reads all items of its input before it returns the first result",
            ),
            who=process.name,
            pool=pool,
            accounts_for=("frozen",),
        )
        return


def _called(place: Place) -> str:
    """The object whose method a line calls, before `.map(`, `.submit(` or `.result(`."""
    text = line_of(place)
    for method in (".map(", ".submit(", ".result("):
        if method in text:
            return text.partition(method)[0].split()[-1].strip("([=")
    return ""


def _waits_for_future(thread: Thread) -> bool:
    waits = ("result", "result_iterator", "wait", "_result_or_cancel")
    return stack_activity.find_frame(thread.frames, "concurrent/futures/_base.py", *waits) >= 0


def _pipe(scene: Scene, reader: Process) -> Iterator[Explanation]:
    """Find a child that cannot write to a full pipe, and whose reader waits for another pipe or for the child's end."""
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
                f"{child.name} waits for {writing.waiting.words}",
                f"only {reader.name} can read that pipe, but it waits at {quoted(thread.place)}: {thread.waiting.words}",
            ),
            writer=child.name,
            reader=reader.name,
            at_end=thread.waiting.kind == "child",
            queue=child.role == "worker"
            or any(stack_activity.frame_is_in(one, "multiprocessing/queues.py") for one in writing.frames),
            accounts_for=("frozen",),
        )
        return
