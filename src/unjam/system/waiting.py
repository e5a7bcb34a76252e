"""What a process waits for, from /proc: its system call, and the target of the descriptor it uses.

Without permission to read another process's system call, we see only its state and the kernel function
that it sleeps in, so the text is less specific.
"""

from __future__ import annotations

import ipaddress
import os
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from unjam.system import proc_files, system_calls
from unjam.system.proc_files import read_text, stat_fields, tcp_sockets
from unjam.system.system_calls import READS, WRITES, Call

_STATES = {
    "D": "the disk or another device (uninterruptible sleep)",
    "T": "SIGCONT: it was suspended (SIGSTOP)",
    "t": "the debugger that stopped it",
    "Z": "nothing (it has ended)",
}


# parts of names of kernel functions in which a thread sleeps, for when we may not read its call
_PLACES = (
    ("futex", "lock", "a lock"),
    ("pipe_read", "pipe", "data from a pipe"),
    ("pipe_write", "pipe", "space in a pipe"),
    ("wait_for_partner", "pipe", "the other end of a named pipe to be opened"),
    ("nanosleep", "sleep", "a sleep to end"),
    ("lock_inode_wait", "lock", "a lock on a file"),
    ("do_wait", "child", "a child process to end"),
    ("vfork", "child", "a child process to start"),
    ("unix_stream", "socket", "a socket"),
    ("sk_wait", "socket", "a socket"),
    ("wait_woken", "socket", "a socket or a terminal"),
    ("inet_", "socket", "a socket"),
    ("tty", "terminal", "input from the terminal"),
    ("poll", "descriptors", "one of its descriptors"),
    ("select", "descriptors", "one of its descriptors"),
    ("refrigerator", "suspended", "its frozen control group to be thawed"),
    ("freeze", "suspended", "its frozen control group to be thawed"),
    ("sigtimedwait", "signal", "a signal"),
    ("sigsuspend", "signal", "a signal"),
    ("sem", "lock", "a System V semaphore"),
    ("nfs", "disk", "a network file system"),
    ("rpc_", "disk", "a network file system"),
    ("fuse", "disk", "a file system in user space (FUSE)"),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a thread waits for at this moment. `words`: the same as text that can follow "waits for".

    kind: "lock", "pipe", "socket", "file", "child", "sleep", "disk", "suspended", "terminal",
        "signal", "descriptors", "nothing" (it computes) or "unknown".
    limit: after how many seconds the call times out; None: never, or unknown.
    """

    kind: str
    words: str
    state: str = "?"
    call: str | None = None
    target: str | None = None
    limit: float | None = None
    fds: tuple[int, ...] = ()
    address: int = 0  # of a futex
    shared: bool = False  # the futex is in memory that processes share
    writes: bool = False  # it waits to write, not to read

    @property
    def phrase(self) -> str:
        """What the thread does: "waits for a lock", or "computes"."""
        return "computes" if self.kind == "nothing" else f"waits for {self.words}"


def current_wait(pid: int, tid: int | None = None) -> Waiting:
    """What a thread of `pid` waits for now; without `tid`, its main thread."""
    state = thread_state(pid, tid)
    if state in ("T", "t", "Z"):
        return Waiting("suspended" if state == "T" else "unknown", _STATES[state], state)
    call = system_calls.current(pid, tid)
    if state == "D":
        return _in_the_kernel(pid, call, _kernel_function(pid, tid))
    if state == "R" or (call is not None and call.name == "running"):
        return Waiting("nothing", "nothing (it is computing)", state)
    if call is None or call.name is None:
        place = _kernel_function(pid, tid)
        for mark, kind, words in _PLACES:
            if mark in place:
                return Waiting(kind, words, state)
        known = f" (in the kernel: {place})" if place else ""
        return Waiting("unknown", f"something that cannot be read from outside{known}", state)
    return _waiting_in(pid, state, call)


def _kernel_function(pid: int, tid: int | None) -> str:
    """The name of the kernel function that a thread sleeps in."""
    return read_text(f"/proc/{pid}/task/{tid or pid}/wchan").strip("0\n ")


def _in_the_kernel(pid: int, call: Call | None, place: str) -> Waiting:
    name = call.name if call else None
    if "vfork" in place or name in ("clone", "vfork"):
        return Waiting("child", "a child process to start", "D", name)
    if "refrigerator" in place or "freeze" in place:
        return Waiting("suspended", "its frozen control group to be thawed", "D")
    target = descriptor_target(pid, call.arguments[0]) if call and name in READS | WRITES else None
    if call is not None and name in ("openat", "open", "statx", "fstatat"):
        target = system_calls.text_at(pid, call.arguments[0 if name == "open" else 1])
    return Waiting("disk", _STATES["D"] + (f", at {target}" if target else ""), "D", name, target)


def _waiting_in(pid: int, state: str, call: Call) -> Waiting:
    name, given = call.name, call.arguments
    limit = system_calls.time_left(pid, call)
    if name == "futex":
        return Waiting("lock", "a lock", state, name, None, limit, address=given[0], shared=call.shared)
    if name in ("semop", "semtimedop"):
        return Waiting("lock", "a System V semaphore", state, name)
    if name in ("nanosleep", "clock_nanosleep"):
        return Waiting("sleep", "a sleep to end", state, name, None, limit)
    if name in ("wait4", "waitid"):
        wanted = _awaited(name, given)
        return Waiting("child", "a child process to end", state, name, f"pid {wanted}" if wanted else None)
    if name in ("clone", "vfork"):
        return Waiting("child", "a child process to start", state, name)
    if name in ("sigtimedwait", "sigsuspend", "pause"):
        return Waiting("signal", "a signal", state, name, None, limit)
    if name in ("openat", "open"):
        return _opening(pid, state, system_calls.text_at(pid, given[1 if name == "openat" else 0]))
    if name in ("flock", "fcntl"):
        target = descriptor_target(pid, given[0])
        return Waiting("lock", f"a lock on the file {target}", state, name, target, fds=(given[0],))
    if name in READS | WRITES:
        target = descriptor_target(pid, given[0])
        kind = _kind_of(target)
        words = f"{'data from' if name in READS else 'space to write to'} {target}"
        if name == "connect":
            words = f"its connection{target.removeprefix('a socket')} to be accepted"
        if kind == "terminal" and name in READS:
            words = "input from the terminal"
        return Waiting(kind, words, state, name, target, fds=(given[0],), writes=name in WRITES)
    fds = _polled(pid, call)
    if not fds and limit is not None and name in ("select", "pselect6", "poll", "ppoll"):
        # time.sleep in Python 3.10 waits in select
        return Waiting("sleep", "a sleep to end", state, name, None, limit)
    targets = [descriptor_target(pid, fd) for fd in fds]
    if targets:
        words = f"activity on {', '.join(targets[:3])}"
        return Waiting(_kind_of(targets[0]), words, state, name, targets[0], limit, tuple(fds))
    return Waiting("unknown", f"activity on one of its descriptors ({name})", state, name, None, limit)


def _awaited(name: str, given: Sequence[int]) -> int:
    """The process that `wait4` or `waitid` waits for; 0 if it is any child."""
    by_pid = 1  # P_PID of waitid
    wanted = given[0] if name == "wait4" else given[1] if given[0] == by_pid else 0
    return wanted if 0 < wanted < 1 << 31 else 0


def _opening(pid: int, state: str, path: str) -> Waiting:
    inside = path if path.startswith("/") else os.path.join(f"/proc/{pid}/cwd", path)
    try:
        named_pipe = stat.S_ISFIFO(os.stat(inside).st_mode)
    except OSError:
        named_pipe = False
    what = f"the other end of the named pipe {path} to be opened" if named_pipe else f"{path} to open"
    return Waiting("pipe" if named_pipe else "file", what, state, "open", path)


def thread_state(pid: int, tid: int | None = None) -> str:
    """The state letter of a thread: R, S, D, T, t, Z, or ? if there is no such thread."""
    fields = stat_fields(f"{pid}/task/{tid or pid}") or stat_fields(pid)
    return fields[0] if fields else "?"


def _polled(pid: int, call: Call) -> list[int]:
    """The descriptors that the call waits for, from the process's memory or (epoll) the kernel."""
    given = call.arguments
    if call.name in ("poll", "ppoll"):
        data = system_calls.peek(pid, given[0], min(given[1], 8) * 8)
        return [fd for fd, _, _ in struct.iter_unpack("<ihh", data[: len(data) // 8 * 8]) if fd >= 0]
    if call.name in ("epoll_wait", "epoll_pwait2"):
        lines = read_text(f"/proc/{pid}/fdinfo/{given[0]}").splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("tfd:")][:8]
    if call.name in ("select", "pselect6") and given[1]:
        bits = int.from_bytes(system_calls.peek(pid, given[1], 128), "little")
        return [fd for fd in range(min(given[0], 1024)) if bits >> fd & 1][:8]
    return []


def descriptor_target(pid: int, fd: int) -> str:
    """The target of a process's descriptor, as text."""
    target = proc_files.descriptor_target(fd, pid)
    if not target:
        return f"descriptor {fd}"
    if target.startswith("socket:"):
        return f"a socket{_peer(pid, target[8:-1])}"
    if target.startswith("pipe:"):
        return f"a pipe (descriptor {fd}, {target})"
    if target.startswith(("/dev/pts/", "/dev/tty")):
        return f"the terminal {target}"
    return target


def _kind_of(target: str) -> str:
    for kind in ("socket", "pipe", "terminal"):
        if target.startswith((f"a {kind}", f"the {kind}")):
            return kind
    return "file" if target.startswith("/") else "unknown"


def _peer(pid: int, inode: str) -> str:
    """` to 10.0.0.7:443` for a TCP connection; otherwise its own address, or empty text."""
    for row, size in tcp_sockets(pid):
        if row[9] == inode:
            return f" to {address_text(row[2], size)}" if row[3] == "01" else f" ({address_text(row[1], size)})"
    return ""


def address_text(text: str, size: int) -> str:
    """An address of /proc/net/tcp (size 4) or tcp6 (size 16)."""
    host, _, port = text.partition(":")
    if size == 4:
        return f"{ipaddress.IPv4Address(int(host, 16).to_bytes(4, sys.byteorder))}:{int(port, 16)}"
    # four words in this machine's byte order
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, 32, 8)]
    return f"[{ipaddress.IPv6Address(b''.join(words))}]:{int(port, 16)}"
