"""Queries on a scene: the processes of a stuck program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.facts import stack_activity
from unjam.doctor.facts.held_locks import locks_acquired_at
from unjam.doctor.facts.scene import Holder, Process, Scene, Thread
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.trial import Place, SyncObject
from unjam.doctor.proof import AGREES, SUGGESTED, Ground
from unjam.doctor.queries.trials import worker_words
from unjam.units import count, duration

# stages in which a process works on samples
WORK = ("sample", "collate", "sampler", "init", "made", "task", "start", "end", "send")
# seconds: waits longer than the first are reported; waits longer than the second are probably a freeze
WORTH_NAMING, NO_ACCIDENT = 3.0, 30.0
# seconds of computing in one sample after which it may be endless, not only slow
IN_DOUBT = 2.4
# seconds: a sleep or timeout longer than this counts as a wait without a timeout
LONG_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class BlockedProcess:
    """A process that should be loading and makes no progress."""

    scene: Scene
    process: Process
    thread: Thread

    @property
    def seconds(self) -> float:
        """Seconds for which it has waited, at least."""
        return waited(self.thread, self.scene)

    @property
    def worker(self) -> str:
        """Which worker it is, and in which sample or stage."""
        doing = self.process.activity
        return worker_words(doing.number if self.process.role == "worker" else -1, doing.stage, doing.index)

    @property
    def sync(self) -> SyncObject | None:
        """The Python lock, queue or similar object that it waits in."""
        return self.thread.syncs[0] if self.thread.syncs else None

    @property
    def who(self) -> str:
        """Which process is stuck and where, with its pid for `kill` and `py-spy`."""
        words = self.worker if self.process.role == "worker" else _main_words(self.process)
        rank = self.scene.main_of(self.process).rank
        prefix = f"rank {rank}: " if rank and len(self.scene.mains) > 1 and self.process.role == "worker" else ""
        return f"{prefix}{words} (pid {self.process.pid})"

    @property
    def where(self) -> str:
        """The stuck line with its text, or a note that it could not be read."""
        return quoted(self.thread.place) or "a line that could not be read"

    def evidence(self, *more: str) -> tuple[str, ...]:
        """Where and for how long it waits, more lines, and which processes wait because of it."""
        return (f"waits at {self.where}, for {duration(self.seconds)}", *more, *consequence(self.scene, self))

    @property
    def others(self) -> list[Thread]:
        """The other Python threads of the process that could end the wait."""
        return [one for one in self.process.threads[1:] if one.frames and not _is_service_thread(one)]

    @property
    def sure(self) -> Ground:
        """How certain it is that this wait is a freeze."""
        return AGREES if self.seconds >= NO_ACCIDENT or self.thread.alone else SUGGESTED


def _main_words(process: Process) -> str:
    doing = process.activity
    who = process.name.partition(" (")[0]
    if doing.stage == "sample" and doing.index:
        return f"{who} in sample {doing.index}"
    return f"{who} in the collate function" if doing.stage == "collate" else who


def _is_service_thread(thread: Thread) -> bool:
    """Whether a thread belongs to multiprocessing or unjam: it cannot end a wait of the program."""
    feeds = any(stack_activity.frame_is_in(frame, "multiprocessing/queues.py", "_feed") for frame in thread.frames)
    serves = any(stack_activity.frame_is_in(frame, "multiprocessing/resource_sharer.py") for frame in thread.frames)
    return feeds or serves or thread.name.startswith("unjam-")


def waited(thread: Thread, scene: Scene) -> float:
    """Return for how many seconds a thread has waited, from the kernel or else from the observation."""
    if thread.rested is not None:
        return thread.rested
    return scene.seconds if thread.steady and not thread.computes else 0.0


def blocked_processes(scene: Scene) -> list[BlockedProcess]:
    """List the processes that work on samples and make no progress, the longest waits first."""
    found = _find_blocked(scene)
    stuck = {blocked.process.pid for blocked in found}
    # skip waits for a shared lock whose holder makes progress: it will release the lock
    found = [
        blocked
        for blocked in found
        if not any(h.pid not in stuck for h in blocked.thread.holders if h.pid != scene.main_of(blocked.process).pid)
    ]
    return sorted(
        found, key=lambda blocked: (-round(blocked.seconds / 5), blocked.process.activity.number, -blocked.seconds)
    )


def _find_blocked(scene: Scene) -> list[BlockedProcess]:
    found = []
    for process in scene.processes:
        works = process.role in ("worker", "main") and process.activity.stage in WORK
        if process.ended or not process.threads or not (works or (process.role == "worker" and process.stack_error)):
            continue
        if is_blocked(scene, process, process.thread):
            found.append(BlockedProcess(scene, process, process.thread))
    return found


def polls(scene: Scene, process: Process) -> bool:
    """Whether a process slept repeatedly at the same line, in the same sample, while it was observed."""
    thread = process.thread
    small = thread.waiting.kind == "sleep" and thread.waiting.limit is not None and thread.waiting.limit < 2
    return (
        process.same_sample and thread.steady and small and thread.context_switches >= 4 and scene.seconds >= IN_DOUBT
    )


def is_blocked(scene: Scene, process: Process, thread: Thread) -> bool:
    """Whether a thread waits for longer than a moment."""
    wait, seconds = thread.waiting, waited(thread, scene)
    if thread.computes or wait.kind in ("nothing", "suspended"):
        return False
    if wait.limit is not None and polls(scene, process):
        return True
    if wait.limit is not None:
        return wait.limit >= LONG_LIMIT and (thread.steady or not thread.frames)
    if process.stack_error and process.role == "worker":
        # torch's idle workers wake up every five seconds, later on a busy machine
        return seconds > 8
    if wait.kind == "lock" and wait.target is None:
        return seconds > 1
    return seconds >= WORTH_NAMING


def consequence(scene: Scene, blocked: BlockedProcess) -> tuple[str, ...]:
    """Describe which processes wait because of it, and for how long no batch was delivered."""
    main = scene.main_of(blocked.process)
    lines = []
    others = [one for one in blocked_processes(scene) if one.process.pid != blocked.process.pid]
    same = [one for one in others if one.thread.place == blocked.thread.place]
    if same and blocked.thread.place is None:
        lines.append(f"{count(len(same), 'other process is', 'other processes are')} in the same state")
    elif same:
        lines.append(f"{count(len(same), 'other process waits', 'other processes wait')} at the same line")
    if main.pid != blocked.process.pid and main.activity.stage == "waits":
        silent = f"; the workers sent nothing for {duration(main.silent)}" if main.silent is not None else ""
        lines.append(f"{main.name} waits for its next batch{silent}")
    return tuple(lines)


def lock_names(blocked: BlockedProcess) -> list[str]:
    """Return the expressions for the lock on the stuck line."""
    place = blocked.thread.place
    frame = next((f for f in blocked.thread.frames if place and f.file == place.file and f.line == place.line), None)
    return locks_acquired_at(frame) if frame else []


def is_between_processes(blocked: BlockedProcess) -> bool:
    """Whether the lock is in memory that processes share."""
    return blocked.thread.waiting.shared or bool(blocked.sync and blocked.sync.state.between_processes)


def line_text(blocked: BlockedProcess) -> str:
    """Return the text of the stuck line."""
    return line_of(blocked.thread.place)


def peer_words(blocked: BlockedProcess) -> Iterator[str]:
    """Describe which processes have the other end of a pipe or socket."""
    if blocked.thread.alone:
        yield "only this process itself has the other end open, so nothing can arrive"
    elif blocked.thread.peers:
        ended = [pid for pid in blocked.thread.peer_pids if (one := blocked.scene.find(pid)) is not None and one.ended]
        dead = f"; {len(ended):,} of them dead" if ended else ""
        yield f"the other end is open in {', '.join(blocked.thread.peers)}{dead}"


def waits_for_lock(blocked: BlockedProcess) -> bool:
    """Whether it waits for a plain lock, not for a queue or similar that uses a lock inside."""
    plain = blocked.sync is None or blocked.sync.state.kind == "lock"
    return (
        blocked.thread.waiting.kind == "lock"
        and blocked.thread.waiting.target is None
        and plain
        and not blocked.thread.native
    )


def waits_for_own_lock(blocked: BlockedProcess) -> bool:
    """Whether it waits for a Python lock that only its process uses."""
    return waits_for_lock(blocked) and not is_between_processes(blocked) and bool(blocked.thread.frames)


def loop_waits_outside(blocked: BlockedProcess) -> bool:
    """Whether an event loop waits for a connection, not only for its own futures."""
    loop = blocked.sync is not None and blocked.sync.state.kind == "loop"
    return loop and (bool(blocked.thread.peer_pids) or "socket to" in blocked.thread.waiting.words)


def lock_name(blocked: BlockedProcess) -> str:
    """Return a name for the lock."""
    names = [holder.expression for holder in blocked.thread.holders] or lock_names(blocked)
    return (names[0] if names else "") or called_on(blocked) or "a lock"


# methods that wait
_WAITING = {
    "get", "put", "wait", "result", "acquire", "join", "recv", "run", "run_until_complete", "submit", "map", "wait_for",
}  # fmt: skip


def called_on(blocked: BlockedProcess) -> str:
    """Return the object whose method the stuck line calls: `self.queue` in `self.queue.get()`."""
    line = line_text(blocked)
    for text in (line, f"{line} pass", line.removeprefix("return "), line.partition(" = ")[2]):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WAITING:
                return ast.unparse(node.func.value)
    return ""


def in_first_batch(blocked: BlockedProcess) -> bool:
    """Whether a worker of torch is in its first batch; True for every other worker."""
    doing = blocked.process.activity
    return doing.loader != "torch" or doing.batch < max(doing.workers, 1)


def in_first_sample(blocked: BlockedProcess) -> bool:
    """Whether a worker of torch has not finished any sample yet."""
    return blocked.process.activity.loader == "torch" and in_first_batch(blocked) and blocked.process.activity.first


def own_threads(process: Process) -> list[Thread]:
    """List the threads that the program itself started."""
    return [
        one
        for one in process.threads[1:]
        if one.frames and not _is_service_thread(one) and "pin_memory" not in one.name
    ]


def stuck_threads(scene: Scene, process: Process) -> list[BlockedProcess] | None:
    """List what the other threads of a process wait for.

    None if one of them makes progress: a wait for that thread may end.
    """
    found = []
    for thread in own_threads(process):
        if thread.place is None and not thread.computes:
            continue  # a thread of a library
        if not is_blocked(scene, process, thread):
            return None
        found.append(BlockedProcess(scene, process, thread))
    return found


def thread_words(blocked: BlockedProcess) -> str:
    """Describe a stuck thread in one line."""
    holder = next(iter(blocked.thread.holders), None)
    what = blocked.thread.waiting.words
    if holder is not None:
        what = f"{holder.expression}, which {'it holds itself' if holder.itself else f'thread {holder.thread!r} holds'}"
    elif blocked.sync is not None:
        what = called_on(blocked) or what
    return f"thread {blocked.thread.name!r} waits for {what} at {quoted(blocked.thread.place)}"


def thread_of(scene: Scene, holder: Holder) -> Thread | None:
    """Return the thread that holds a lock."""
    process = scene.find(holder.pid)
    return next((one for one in process.threads if one.tid == holder.tid), None) if process else None


def is_progressing(scene: Scene, pid: int) -> bool:
    """Whether a process is not blocked."""
    return all(blocked.process.pid != pid for blocked in blocked_processes(scene))


def children_words(scene: Scene, blocked: BlockedProcess) -> list[str]:
    """Describe the children of a process, which it may wait for."""
    found = []
    for child in scene.children(blocked.process)[:3]:
        does = "computes" if not child.threads else child.threads[0].waiting.phrase
        found.append(f"{child.name}, {'dead' if child.ended else does}")
    return found


def most_frequent_line(thread: Thread) -> Place | None:
    """Return the user's line at which a thread was observed most often."""
    lines = {where: times for where, times in thread.lines.items() if where}
    if not lines:
        return thread.place
    file, _, line = max(lines, key=lambda where: lines[where]).rpartition(":")
    return Place(file, int(line))


def replacement_workers(workers: list[Process]) -> list[Process]:
    """List the workers that started later than the others, to replace dead workers."""
    # a pool starts its workers milliseconds apart; a gap means a replacement
    its = sorted((one for one in workers if one.activity.loader == "pool"), key=lambda one: -one.age)
    late = next((at for at in range(1, len(its)) if its[at - 1].age - its[at].age > 0.2), None)
    return its[late:] if late is not None else []


def silence_words(main: Process) -> tuple[str, ...]:
    """Describe for how long no worker has sent anything."""
    return (f"the workers sent nothing for {duration(main.silent)}",) if main.silent is not None else ()
