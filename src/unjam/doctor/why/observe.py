"""Observes a running program from outside for a few seconds; stops, signals and changes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from unjam.doctor.check.processes import pause
from unjam.doctor.facts import held_locks, stack_activity
from unjam.doctor.facts.scene import Activity, Process, Scene, Thread
from unjam.doctor.why.families import Family, is_helper
from unjam.doctor.why.heartbeat import doing_of, heartbeat_of
from unjam.doctor.why.permission import remedy
from unjam.doctor.why.relations import silence, with_connections, with_ends, with_holders
from unjam.system import limits, native_stacks, process_table, python_stacks, waiting
from unjam.system.descriptor_owners import Owners
from unjam.system.file_owner import is_users
from unjam.system.foreign_files import load_sources, read_their_output
from unjam.system.memory_limits import available_memory, oom_kills
from unjam.system.proc_files import descriptor_target, descriptors, is_number, read_text, thread_ids
from unjam.system.process_table import (
    IdleClock,
    ProcessEntry,
    catches_signal,
    entry,
    environment,
    ignores_signal,
    processor_time,
    rank_in,
    voluntary_switches,
)
from unjam.system.python_stacks import CannotReadStacks, PythonThread
from unjam.system.stacks import Frame

# seconds to observe at least; and if a process may be slow or in an endless loop
SHORT, LONG = 1.5, 2.6
MOST_PYTHON_THREADS = 24


@dataclass
class _Observed:
    """One process while we observe it."""

    entry: ProcessEntry
    role: str
    main: int
    spied: list[PythonThread] = field(default_factory=list)
    blind: str = ""
    began: dict[int, float] = field(default_factory=dict)
    queued: dict[int, float] = field(default_factory=dict)
    at: float = 0.0
    turns: dict[int, int] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    steady: bool = True
    same_sample: bool = True
    key: str = ""
    unserved: bool = False
    number: int = -1  # by start time, used if no better number is known
    doing: Activity = field(default_factory=Activity)

    def main_thread(self) -> PythonThread | None:
        """Return the main thread; of a main process, the thread that uses a loader."""
        pid = self.entry.pid
        first = next((one for one in self.spied if one.tid == pid), None)
        first = first or next((one for one in self.spied if one.name == "MainThread"), None)
        if self.role == "main" and first is not None and not _uses_a_loader(first):
            return next((one for one in self.spied if _uses_a_loader(one)), first)
        return first

    @property
    def tid(self) -> int:
        """The thread id of `main_thread()`."""
        thread = self.main_thread()
        return thread.tid if thread is not None and thread.tid else self.entry.pid


def _uses_a_loader(thread: PythonThread) -> bool:
    doing = stack_activity.main_activity(thread.frames, thread.values)
    return doing.stage != "elsewhere" and doing.loader in ("torch", "unjam")


def observe(family: Family, seconds: float = 0.0) -> Scene:
    """Observe every process of a family at least twice, and combine the observations."""
    began = time.monotonic()
    watched = _to_watch(family)
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(_first_look, watched))
        _assign_roles(watched)
        _look_again(watched, began, seconds, executor)
        rest, owners = IdleClock(), Owners()
        elapsed = time.monotonic() - began
        # a worker or child that exited and was reaped meanwhile is not part of the scene
        watched = [one for one in watched if one.role == "main" or os.path.exists(f"/proc/{one.entry.pid}")]
        processes = list(executor.map(lambda one: _describe(one, rest), watched))
    everyone = [with_ends(process, owners) for process in processes]
    everyone = [
        replace(with_connections(one, everyone, owners), silent=silence(one, everyone, owners)) for one in everyone
    ]
    blind = next((one.blind for one in watched if one.blind and one.role in ("main", "worker")), "")
    first = family.mains[0].pid
    way = remedy(first) if blind else ""
    kills = oom_kills(first)
    free, whole = limits.shared_memory(f"/proc/{first}/root")
    return Scene(
        tuple(with_holders(one, everyone) for one in everyone),
        elapsed,
        f"this user may not read the program's memory ({blind.removeprefix('Error: ')})" if blind and way else blind,
        way,
        limits.processors(),
        (free or 0, whole or 0),
        available_memory(),
        kills=kills.count if kills else 0,
    )


def _to_watch(family: Family) -> list[_Observed]:
    mains = {one.pid for one in family.mains}
    found = [_Observed(one, "main", one.pid) for one in family.mains]
    parents = {one.pid: one.parent for one in (*family.workers, *family.others)}

    def main_pid(pid: int) -> int:
        while pid not in mains and pid in parents:
            pid = parents[pid]
        return pid

    found += [_Observed(one, "worker", main_pid(one.pid)) for one in family.workers]
    found += [_Observed(one, "helper" if is_helper(one) else "child", main_pid(one.pid)) for one in family.others]
    return found


def _first_look(one: _Observed) -> None:
    pid = one.entry.pid
    one.at = time.monotonic()
    one.began = {tid: processor_time(pid, tid) for tid in thread_ids(pid)}
    one.queued = {tid: process_table.queueing_time(pid, tid) for tid in one.began}
    one.turns = {tid: voluntary_switches(pid, tid) for tid in one.began}
    if one.role in ("helper", "child") or one.entry.state == "Z":
        return
    _read_stacks(one)


def _read_stacks(one: _Observed) -> None:
    try:
        now = python_stacks.stacks(one.entry.pid)
    except CannotReadStacks as refused:
        one.blind = one.blind or str(refused)
        return
    before = one.main_thread()
    load_sources(one.entry.pid, {frame.file for thread in now for frame in thread.frames})
    one.spied, one.blind = [_own_calls(thread) for thread in now], ""
    after = one.main_thread()
    if after is None:
        return
    if before is not None and before.frames != after.frames:
        one.steady = False
    place = next((f"{f.file}:{f.line}" for f in after.frames if is_users(f.file)), "")
    one.lines[place] += 1
    one.looks += 1
    doing = _doing(one, after)
    key = f"{doing} {stack_activity.progress(after.frames, after.values, after.arguments)}"
    if one.looks > 1 and key != one.key:
        one.same_sample = one.steady = False
    one.doing, one.key = doing, key


def _own_calls(thread: PythonThread) -> PythonThread:
    """Remove the frames that a forked process inherited from its parent."""
    begin = stack_activity.find_frame(thread.frames, "multiprocessing/process.py", "_bootstrap")
    if begin < 0:
        return thread
    kept = slice(begin + 1)
    return replace(thread, frames=thread.frames[kept], values=thread.values[kept], arguments=thread.arguments[kept])


def _doing(one: _Observed, thread: PythonThread) -> Activity:
    if one.role == "worker":
        return stack_activity.worker_activity(thread.frames, thread.values) or Activity("process", "start")
    doing = stack_activity.main_activity(thread.frames, thread.values)
    return Activity("", "elsewhere") if one.unserved and doing.loader in ("pool", "process") else doing


def _assign_roles(watched: list[_Observed]) -> None:
    """Correct the roles, e.g. children of multiprocessing that are ranks become main processes."""
    for one in watched:
        thread = one.main_thread()
        if one.role != "worker" or thread is None or one.doing.loader != "process":
            continue
        spawned = stack_activity.find_frame(thread.frames, "torch/multiprocessing/spawn.py", "_wrap") >= 0
        loads = stack_activity.find_frame(thread.frames, "torch/utils/data/dataloader.py") >= 0  # it uses a loader
        if spawned or loads or stack_activity.collective(thread.frames):
            _make_main(one, watched)
    ranks = [one for one in watched if one.role == "main" and stack_activity.collective(_frames(one))]
    for one in watched:
        # it is a sibling or child of a rank, so it is a rank too
        beside = any(one.entry.parent in (rank.entry.parent, rank.entry.pid) for rank in ranks)
        if one.role == "worker" and one.doing.loader == "process" and beside:
            _make_main(one, watched)
    parents = {one.entry.parent for one in watched if one.role == "main"}
    for one in watched:
        # a process that only waits for its ranks is not a rank
        if one.role == "main" and one.entry.pid in parents and not _loads_or_trains(one, watched):
            one.role = "helper"
    for main in {one.main for one in watched}:
        its = [one for one in watched if one.role == "worker" and one.main == main]
        for number, one in enumerate(sorted(its, key=lambda one: (one.entry.born, one.entry.pid))):
            one.number = number
    mains = [one for one in watched if one.role == "main"]
    for number, one in enumerate(sorted(mains, key=lambda one: (one.entry.born, one.entry.pid))):
        one.number = number if len(mains) > 1 else -1
    for one in watched:
        # a wait for a pool or queue is a wait for a loader only if worker processes serve it
        its = [other for other in watched if other.main == one.entry.pid and other.role == "worker"]
        served = any(other.doing.loader in ("pool", "process", "") for other in its)
        if one.role == "main" and one.doing.loader in ("pool", "process") and not served:
            one.doing = Activity("", "elsewhere")
            one.unserved = True
    for one in watched:
        # the program started this process itself; it is not one of the loader's workers
        if one.role == "worker" and one.doing.loader == "process" and _has_loader(one.main, watched):
            one.role = "child"


def _loads_or_trains(one: _Observed, watched: list[_Observed]) -> bool:
    own = any(
        other.role == "worker" and other.main == one.entry.pid and other.doing.loader == "torch" for other in watched
    )
    return own or bool(stack_activity.collective(_frames(one)))


def _has_loader(main: int, watched: list[_Observed]) -> bool:
    return any(
        one.main == main and one.doing.loader in ("torch", "unjam", "pool") for one in watched if one.role == "worker"
    )


def _frames(one: _Observed) -> tuple[Frame, ...]:
    thread = one.main_thread()
    return thread.frames if thread else ()


def _make_main(one: _Observed, watched: list[_Observed]) -> None:
    one.role, one.main = "main", one.entry.pid
    # earlier observations compared another stage and thread
    one.looks, one.key = 0, ""
    one.steady = one.same_sample = True
    thread = one.main_thread()
    if thread is not None:
        one.doing = stack_activity.main_activity(thread.frames, thread.values)
    for other in watched:
        if other.entry.parent == one.entry.pid and other is not one:
            other.main = one.entry.pid


def _look_again(watched: list[_Observed], began: float, seconds: float, executor: ThreadPoolExecutor) -> None:
    """Read all stacks once more at the end, and those of active processes many times until then."""
    active = [one for one in watched if one.spied and one.doing.stage != "idle"][:12]
    until = began + max(SHORT, seconds)
    longest = began + max(LONG, seconds)
    while time.monotonic() < until:
        pause(min(0.2, max(0.0, until - time.monotonic())))
        list(executor.map(_read_stacks, active))
        if time.monotonic() >= until and any(_may_be_endless(one) for one in active):
            until = longest
    rest = [one for one in watched if one.spied and one not in active]
    list(executor.map(_read_stacks, rest))


def _may_be_endless(one: _Observed) -> bool:
    """Whether a process stayed in one sample but still runs: slow, or in an endless loop."""
    if not one.same_sample or one.doing.stage not in ("sample", "collate", "task", "init", "made"):
        return False
    now = waiting.current_wait(one.entry.pid, one.tid)
    return now.kind == "nothing" or (now.limit is not None and now.limit < LONG)


def _describe(one: _Observed, rest: IdleClock) -> Process:
    pid = one.entry.pid
    now = entry(pid) or replace(one.entry, state="Z")
    elapsed = max(0.1, time.monotonic() - one.at)
    spied = {thread.tid: thread for thread in one.spied}
    main = one.main_thread()
    if main is not None:
        spied[one.tid] = main
    tids = [one.tid, *(tid for tid in thread_ids(pid) if tid in spied and tid != one.tid)][:MOST_PYTHON_THREADS]
    threads = tuple(_thread(one, tid, spied.get(tid), elapsed, rest) for tid in tids)
    busy = sum(processor_time(pid, tid) - one.began.get(tid, 0.0) for tid in thread_ids(pid)) / elapsed
    used, gpu = _descriptors(pid)
    return Process(
        pid, one.entry.parent, one.role, one.entry.line, now.state, now.age, now.rss, busy, threads, _numbered(one),
        forked=_is_forked(one), rank=_rank(one) if one.role == "main" else "", number=one.number if one.role == "main" else -1, main=one.main, open_files=used,
        most_files=_most_files(pid), stack_error=one.blind, gpu=gpu, log=_log(pid), last_error=_last_error(pid) if one.role == "main" else "", ignores_sigterm=ignores_signal(pid, signal.SIGTERM), handles_sigterm=catches_signal(pid, signal.SIGTERM), same_sample=one.same_sample,
    )  # fmt: skip


def _thread(one: _Observed, tid: int, spied: PythonThread | None, elapsed: float, rest: IdleClock) -> Thread:
    pid = one.entry.pid
    found = waiting.current_wait(pid, tid)
    frames, values = (spied.frames, spied.values) if spied else ((), ())
    busy = (processor_time(pid, tid) - one.began.get(tid, 0.0)) / elapsed
    main = tid == one.tid
    waits = found.kind not in ("nothing", "suspended") and one.role in ("main", "worker")
    sync = stack_activity.sync_object_of(frames, values)
    return Thread(
        tid,
        spied.name if spied else "",
        found,
        rest.seconds(pid, tid),
        busy,
        frames,
        values,
        native_stacks.libraries_on_stack(pid, tid) if waits and main else (),
        # a stack may hold remains of earlier calls: a line that takes a Python lock waits there
        waits
        and main
        and not (frames and held_locks.locks_acquired_at(frames[0]))
        and native_stacks.waits_in_library(pid, tid),
        one.steady if main else True,
        (sync,) if sync else (),
        lines=dict(one.lines) if main else {},
        context_switches=voluntary_switches(pid, tid) - one.turns.get(tid, 0) if main and tid in one.turns else 0,
        queueing=(process_table.queueing_time(pid, tid) - one.queued[tid]) / elapsed if tid in one.queued else 0.0,
    )


def _numbered(one: _Observed) -> Activity:
    heartbeat = heartbeat_of(one.entry.pid) if one.entry.name.startswith("unjam-worker") else None
    if heartbeat is not None:
        number = one.entry.name.rpartition("-")[2]
        return doing_of(heartbeat, one.doing, int(number) if is_number(number) else one.number)
    return replace(one.doing, number=one.number) if one.doing.number < 0 and one.role == "worker" else one.doing


def _is_forked(one: _Observed) -> bool:
    parent = entry(one.entry.parent)
    return parent is not None and parent.command == one.entry.command and bool(parent.command) and not is_helper(parent)


def _rank(one: _Observed) -> str:
    known = rank_in(environment(one.entry.pid))
    if known:
        return known
    thread = one.main_thread()
    for values in reversed(thread.values if thread else ()):
        for name in ("rank", "local_rank", "i"):
            if is_number(values.get(name, "")) and (name != "i" or "error_file" in values):
                return values[name]
    return ""


def _descriptors(pid: int) -> tuple[int, bool]:
    """Return the number of open descriptors, and whether one is a GPU device."""
    targets = descriptors(pid).values()
    return len(targets), any(target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")) for target in targets)


def _most_files(pid: int) -> int:
    words = read_text(f"/proc/{pid}/limits").partition("Max open files")[2].split()
    return int(words[0]) if words and is_number(words[0]) else 0


def _log(pid: int) -> str:
    """Return the path of the file that standard error goes to, or ""."""
    target = descriptor_target(2, pid)
    return target if target.startswith("/") and not target.startswith("/dev/") else ""


def _last_error(pid: int) -> str:
    """Return the last line of standard error that mentions an error or exception."""
    lines = read_their_output(pid, 2, 20_000).decode("utf-8", "replace").splitlines()
    return next((line.strip()[:200] for line in reversed(lines) if "Error" in line or "Exception" in line), "")
