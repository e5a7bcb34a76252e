"""Relations between the processes of a program: pipe ends, lock holders, socket connections."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace

from unjam.doctor.facts import held_locks
from unjam.doctor.facts.scene import Holder, Process, Thread
from unjam.system.descriptor_owners import Owners, file_lock_holder, file_lock_holders, pipes_record_writes
from unjam.system.file_owner import is_users
from unjam.system.process_table import entry


def with_ends(process: Process, owners: Owners) -> Process:
    """Add to each thread the processes at the other end of what it waits for."""
    if process.role not in ("main", "worker", "child"):
        return process
    return replace(process, threads=tuple(_with_peers(process, one, owners) for one in process.threads))


def _with_peers(process: Process, thread: Thread, owners: Owners) -> Thread:
    wait = thread.waiting
    if wait.call in ("flock", "fcntl") and wait.fds:
        holder = file_lock_holder(process.pid)
        pids = [holder] if holder else file_lock_holders(process.pid, wait.fds[0])
        return replace(thread, peers=tuple(map(words_for, pids)), peer_pids=tuple(pids))
    if wait.kind not in ("pipe", "socket") or not wait.fds:
        return thread
    known = [owners.other_end(process.pid, fd) for fd in wait.fds[:3]]
    ends = [pids for pids in known if pids is not None]
    if not ends:
        return thread
    others = sorted({pid for pids in ends for pid in pids if pid != process.pid})
    return replace(thread, peers=tuple(map(words_for, others[:4])), peer_pids=tuple(others), alone=not others)


def silence(process: Process, everyone: list[Process], owners: Owners) -> float | None:
    """Return the seconds since a main process got data from its workers, or a worker from its main.

    The kernel stores the time of the last write to a pipe, so we need no earlier observation.
    """
    if process.role not in ("main", "worker") or not pipes_record_writes():
        return None
    other = {
        one.pid for one in everyone if one.main == process.main and (one.role == "worker") == (process.role == "main")
    }
    written = []
    for fd in owners.incoming(process.pid, other):
        with contextlib.suppress(OSError):  # closed meanwhile, or the process has exited
            written.append(os.stat(f"/proc/{process.pid}/fd/{fd}").st_mtime)
    return max(0.0, time.time() - max(written)) if written else None


def words_for(pid: int) -> str:
    """Return a short description of a process."""
    one = entry(pid)
    return f"pid {pid} ({one.line})" if one else f"pid {pid}"


def with_connections(process: Process, everyone: list[Process], owners: Owners) -> Process:
    """Add to a main process the other main processes that it is connected to: ranks of one job."""
    mains = {one.pid for one in everyone if one.role == "main"}
    if process.role != "main" or len(mains) < 2:
        return process
    return replace(process, connected=tuple(sorted(owners.connected(process.pid) & mains)))


# -- locks -----------------------------------------------------------------------------------------


def with_holders(process: Process, everyone: list[Process]) -> Process:
    """Add to each thread the holders of the locks that it waits for."""
    if process.role not in ("main", "worker", "child"):
        return process
    return replace(process, threads=tuple(_with_lock_holders(process, one, everyone) for one in process.threads))


def _with_lock_holders(process: Process, thread: Thread, everyone: list[Process]) -> Thread:
    frame_at = next((n for n, f in enumerate(thread.frames) if f.line and is_users(f.file)), None)
    if frame_at is None or thread.waiting.kind not in ("lock", "unknown", "descriptors"):
        return thread
    frame = thread.frames[frame_at]
    values = thread.values[frame_at] if frame_at < len(thread.values) else {}
    found: list[Holder] = []
    for expression in held_locks.locks_acquired_at(frame):
        head = values.get(expression.partition(".")[0], frame.file)
        for other in everyone:
            for one in other.threads:
                itself = other.pid == process.pid and one.tid == thread.tid
                frames, known = (
                    (one.frames[frame_at + 1 :], one.values[frame_at + 1 :]) if itself else (one.frames, one.values)
                )
                for its, its_head, place in held_locks.locks_held(frames, known):
                    if its.rpartition(".")[2] == expression.rpartition(".")[2]:
                        same = its_head == head and its == expression
                        found.append(Holder(other.pid, one.tid, one.name, place, expression, itself, same))
    return replace(thread, holders=tuple(found))
