"""Ways of looking at a scene that several rules share. Nothing here names a cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.facts import roles
from unjam.doctor.facts.scene import Process, Scene, Thread
from unjam.doctor.facts.source import line_of
from unjam.doctor.facts.trial import Place, Stuck, Sync
from unjam.doctor.rules.judging import LIKELY, POSSIBLE, count, quoted, worker_words
from unjam.doctor.rules.rule import Confidence

# stages in which a process does something for a sample
WORK = ("sample", "collate", "init", "made", "task", "start", "end", "send")
# seconds: a wait for the world outside that is longer than the first is worth naming, than the second is no accident
WORTH_NAMING, NO_ACCIDENT = 3.0, 30.0
# seconds in one sample, with a processor in use, after which "slow" is not the only word for it
IN_DOUBT = 2.4
# seconds: a sleep or time limit that ends later than this is no better than for ever
LONG_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Jam:
    """A process that should be loading and does not get on."""

    scene: Scene
    process: Process
    thread: Thread
    stuck: Stuck

    @property
    def seconds(self) -> float:
        """For how long at least."""
        return self.stuck.seconds

    @property
    def sync(self) -> Sync | None:
        """What of Python's own it waits in."""
        return self.thread.syncs[0] if self.thread.syncs else None

    @property
    def who(self) -> str:
        """Who is stuck where, with the number that `kill` and `py-spy` take."""
        words = worker_words(self.stuck) if self.process.role == "worker" else _main_words(self.process)
        rank = self.scene.main_of(self.process).rank
        prefix = f"rank {rank}: " if rank and len(self.scene.mains) > 1 and self.process.role == "worker" else ""
        return f"{prefix}{words} (pid {self.process.pid})"

    @property
    def where(self) -> str:
        """The line, with its text, or what there is instead of one."""
        return quoted(self.thread.place) or "a line that could not be read"

    @property
    def others(self) -> list[Thread]:
        """The other Python threads of the same process that could do something for it."""
        return [one for one in self.process.threads[1:] if one.frames and not _serves_itself(one)]

    @property
    def sure(self) -> Confidence:
        """How sure a wait for somebody else can be called a freeze."""
        return LIKELY if self.seconds >= NO_ACCIDENT or self.thread.alone else POSSIBLE


def _main_words(process: Process) -> str:
    doing = process.doing
    who = process.name.partition(" (")[0]
    if doing.stage == "sample" and doing.index:
        return f"{who} in sample {doing.index}"
    return f"{who} in the collate function" if doing.stage == "collate" else who


def _serves_itself(thread: Thread) -> bool:
    """A thread of a library's or of multiprocessing's own, which serves nobody's lock or queue."""
    feeds = any(roles.named(frame, "multiprocessing/queues.py", "_feed") for frame in thread.frames)
    serves = any(roles.named(frame, "multiprocessing/resource_sharer.py") for frame in thread.frames)
    return feeds or serves or thread.name.startswith("unjam-")


def waited(thread: Thread, scene: Scene) -> float:
    """Seconds that a thread has waited, as the kernel noted or as long as it was looked at."""
    if thread.rested is not None:
        return thread.rested
    return scene.seconds if thread.steady and not thread.computes else 0.0


def jams(scene: Scene) -> list[Jam]:
    """Every process that does something for a sample and does not get on, those that waited for longest first."""
    found = _waiting(scene)
    stuck = {jam.process.pid for jam in found}
    # a lock between processes whose holder gets on will be given back
    found = [
        jam
        for jam in found
        if not any(h.pid not in stuck for h in jam.thread.holders if h.pid != scene.main_of(jam.process).pid)
    ]
    return sorted(found, key=lambda jam: (-round(jam.seconds / 5), jam.process.doing.number, -jam.seconds))


def _waiting(scene: Scene) -> list[Jam]:
    found = []
    for process in scene.processes:
        works = process.role in ("worker", "main") and process.doing.stage in WORK
        if process.ended or not process.threads or not (works or (process.role == "worker" and process.blind)):
            continue
        if is_jammed(scene, process, process.thread):
            found.append(jam_of(scene, process, process.thread))
    return found


def jam_of(scene: Scene, process: Process, thread: Thread) -> Jam:
    """A thread as a jam, in the words that the doctor uses of its own trials."""
    doing = process.doing
    stage = doing.stage if doing.stage in ("sample", "init", "made", "collate") else "task"
    if stage == "sample" and not doing.index:
        stage = "task"
    stuck = Stuck(
        process.pid,
        doing.number if process.role == "worker" else -1,
        doing.index,
        stage,
        thread.waiting.kind,
        thread.waiting.words,
        thread.frames,
        thread.native,
        thread.syncs,
        tuple(one.name for one in process.threads[1:]),
        thread.libraries,
        waited(thread, scene),
        thread.computes,
    )
    return Jam(scene, process, thread, stuck)


def polls(scene: Scene, process: Process) -> bool:
    """Whether a process sleeps again and again at one line, in one sample, for the whole look."""
    thread = process.thread
    small = thread.waiting.kind == "sleep" and thread.waiting.limit is not None and thread.waiting.limit < 2
    return process.same_sample and thread.steady and small and thread.turns >= 4 and scene.seconds >= IN_DOUBT


def is_jammed(scene: Scene, process: Process, thread: Thread) -> bool:
    """Whether a thread waits, and not only for a moment."""
    wait, seconds = thread.waiting, waited(thread, scene)
    if thread.computes or wait.kind in ("nothing", "suspended"):
        return False
    if wait.limit is not None and polls(scene, process):
        return True
    if wait.limit is not None:
        return wait.limit >= LONG_LIMIT and (thread.steady or not thread.frames)
    if process.blind and process.role == "worker":
        # torch's idle workers look around every five seconds, and a busy machine is late
        return seconds > 8
    if wait.kind == "lock" and wait.target is None:
        return seconds > 1
    return seconds >= WORTH_NAMING


def waiters(scene: Scene, jam: Jam) -> list[Jam]:
    """The other processes that are stuck at the same line."""
    return [one for one in jams(scene) if one.process.pid != jam.process.pid and one.thread.place == jam.thread.place]


def consequence(scene: Scene, jam: Jam) -> tuple[str, ...]:
    """What the freeze does to the rest: who waits for it, since when nothing was delivered."""
    main = scene.main_of(jam.process)
    lines = []
    same = waiters(scene, jam)
    if same and jam.thread.place is None:
        lines.append(f"{count(len(same), 'other process', 'other processes')} in the same state")
    elif same:
        lines.append(f"{count(len(same), 'other process', 'other processes')} at the same line")
    if main.pid != jam.process.pid and main.doing.stage == "waits":
        silent = f"; nothing came from the workers for {duration(main.silent)}" if main.silent is not None else ""
        lines.append(f"{main.name} waits for its next batch{silent}")
    return tuple(lines)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "an unknown time"
    if seconds < 120:
        return count(round(seconds), "second")
    return f"{round(seconds / 60):,} minutes" if seconds < 7200 else f"{seconds / 3600:,.1f} hours"


def lock_names(jam: Jam) -> list[str]:
    """What the stuck line calls the lock."""
    from unjam.doctor.facts.held_locks import wanted  # noqa: PLC0415 - reads source, which few scenes need

    place = jam.thread.place
    frame = next((f for f in jam.thread.frames if place and f.file == place.file and f.line == place.line), None)
    return wanted(frame) if frame else []


def is_between_processes(jam: Jam) -> bool:
    """Whether the lock lies in memory that processes share."""
    return jam.thread.waiting.shared or bool(jam.sync and jam.sync.facts.get("between_processes"))


def text_at(jam: Jam) -> str:
    """The text of the stuck line."""
    return line_of(jam.thread.place)


def peers(jam: Jam) -> Iterator[str]:
    """Who is at the other end."""
    if jam.thread.alone:
        yield "the other end is held by nobody but this process itself: nothing can come"
    elif jam.thread.peers:
        ended = [pid for pid in jam.thread.peer_pids if (one := jam.scene.find(pid)) is not None and one.ended]
        dead = f"; {count(len(ended), 'of them')} dead" if ended else ""
        yield f"the other end: {', '.join(jam.thread.peers)}{dead}"


def waits_for_lock(jam: Jam) -> bool:
    """Whether it waits for a lock, and not for what a lock only guards."""
    plain = jam.sync is None or jam.sync.facts["kind"] == "lock"
    return jam.stuck.waits == "lock" and jam.thread.waiting.target is None and plain and not jam.thread.native


def waits_for_own_lock(jam: Jam) -> bool:
    """Whether the lock is of one process only, and one of Python's."""
    return waits_for_lock(jam) and not is_between_processes(jam) and bool(jam.thread.frames)


def loop_waits_outside(jam: Jam) -> bool:
    """Whether an event loop waits for a connection, and not only for its own futures."""
    loop = jam.sync is not None and jam.sync.facts["kind"] == "loop"
    return loop and (bool(jam.thread.peer_pids) or "socket to" in jam.stuck.words)


def lock_name(jam: Jam) -> str:
    """What to call the lock."""
    names = [holder.expression for holder in jam.thread.holders] or lock_names(jam)
    return (names[0] if names else "") or called_on(jam) or "a lock"


def called_on(jam: Jam) -> str:
    """What the stuck line calls a method of: `self.queue` in `self.queue.get()`."""
    import ast  # noqa: PLC0415 - as above

    wanted = {
        "get",
        "put",
        "wait",
        "result",
        "acquire",
        "join",
        "recv",
        "run",
        "run_until_complete",
        "submit",
        "map",
        "wait_for",
    }
    line = text_at(jam)
    for text in (line, f"{line} pass", line.removeprefix("return "), line.partition(" = ")[2]):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in wanted:
                return ast.unparse(node.func.value)
    return ""


def in_first_batch(jam: Jam) -> bool:
    """Whether a worker of torch is still in its first batch."""
    doing = jam.process.doing
    return doing.loader != "torch" or doing.batch < max(doing.workers, 1)


def in_first_sample(jam: Jam) -> bool:
    """Whether a worker of torch has not finished a single sample yet."""
    return jam.process.doing.loader == "torch" and in_first_batch(jam) and jam.process.doing.first


def own_threads(process: Process) -> list[Thread]:
    """Threads that the program itself started."""
    return [
        one for one in process.threads[1:] if one.frames and not _serves_itself(one) and "pin_memory" not in one.name
    ]


def stuck_threads(scene: Scene, process: Process) -> list[Jam] | None:
    """What a process's own other threads wait for; None: one of them gets on, and whoever waits for it may only wait."""
    found = []
    for thread in own_threads(process):
        if thread.place is None and not thread.computes:
            continue  # a library's
        if not is_jammed(scene, process, thread):
            return None
        found.append(jam_of(scene, process, thread))
    return found


def thread_words(jam: Jam) -> str:
    """A thread that is stuck, in a line."""
    holder = next(iter(jam.thread.holders), None)
    what = jam.stuck.words
    if holder is not None:
        what = f"{holder.expression}, which {'it holds itself' if holder.itself else 'thread ' + repr(holder.thread) + ' holds'}"
    elif jam.sync is not None:
        what = called_on(jam) or what
    return f"thread {jam.thread.name!r} waits for {what} at {quoted(jam.thread.place)}"


def thread_of(scene: Scene, holder: object) -> Thread | None:
    """The thread that holds something."""
    process = scene.find(getattr(holder, "pid", 0))
    return next((one for one in process.threads if one.tid == getattr(holder, "tid", 0)), None) if process else None


def gets_on(scene: Scene, pid: int) -> bool:
    """Whether a process is not stuck itself."""
    return all(jam.process.pid != pid for jam in jams(scene))


def children_words(scene: Scene, jam: Jam) -> list[str]:
    """What a process started and may wait for."""
    found = []
    for child in scene.children(jam.process)[:3]:
        wait = child.threads[0].waiting.words if child.threads else ""
        ended = (
            "dead" if child.ended else f"waits for {wait}" if wait and not wait.startswith("nothing") else "computes"
        )
        found.append(f"{child.name}, {ended}")
    return found


def commonest(thread: Thread) -> Place | None:
    """The user's line at which most looks found a thread."""
    lines = {where: times for where, times in thread.lines.items() if where}
    if not lines:
        return thread.place
    file, _, line = max(lines, key=lambda where: lines[where]).rpartition(":")
    return Place(file, int(line))


def replaced(workers: list[Process]) -> list[Process]:
    """Workers that are younger than their siblings: they took a dead one's place."""
    # those of a pool are made together, milliseconds apart
    its = sorted((one for one in workers if one.doing.loader == "pool"), key=lambda one: -one.age)
    late = next((at for at in range(1, len(its)) if its[at - 1].age - its[at].age > 0.2), None)
    return its[late:] if late is not None else []


def silence(main: Process) -> tuple[str, ...]:
    """Since when nothing has come."""
    return (f"nothing came from the workers for {duration(main.silent)}",) if main.silent is not None else ()
