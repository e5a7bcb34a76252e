"""What a process waits for, from /proc: the system call it is in, and what lies behind the descriptor it reads.

Facts with their limits: without permission to read another process's system call only its state and the kernel's own
name of the place are known, and the words say less.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

# numbers of the calls that wait, on the two machines that training runs on
_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 23: "select", 35: "nanosleep", 42: "connect", 43: "accept", 45: "recvfrom",
        47: "recvmsg", 46: "sendmsg", 44: "sendto", 61: "wait4", 72: "fcntl", 73: "flock", 202: "futex", 230: "nanosleep",
        232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 17: "pread64", 19: "readv",
        18: "pwrite64", 20: "writev", 74: "fsync", 288: "accept",
    },
    "aarch64": {
        63: "read", 64: "write", 73: "ppoll", 72: "pselect6", 101: "nanosleep", 115: "nanosleep", 203: "connect",
        202: "accept", 207: "recvfrom", 212: "recvmsg", 211: "sendmsg", 206: "sendto", 260: "wait4", 25: "fcntl",
        32: "flock", 98: "futex", 22: "epoll_pwait", 95: "waitid", 67: "pread64", 65: "readv", 68: "pwrite64", 66: "writev",
        82: "fsync", 242: "accept",
    },
}  # fmt: skip
_READS = {"read", "pread64", "readv", "recvfrom", "recvmsg", "accept"}
_WRITES = {"write", "pwrite64", "writev", "sendto", "sendmsg", "connect", "fsync"}
_STATES = {
    "D": "the disk or another device (the kernel calls it uninterruptible)",
    "T": "somebody to let it go on: it was suspended (SIGSTOP)",
    "t": "a debugger that holds it",
    "Z": "nothing: it has ended",
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a process's main thread does at this moment.

    kind: "lock", "pipe", "socket", "file", "child", "sleep", "disk", "suspended", "nothing" (it computes) or "unknown".
    """

    kind: str
    words: str
    state: str = "?"
    call: str | None = None
    target: str | None = None


def look(pid: int) -> Waiting:
    """The main thread of `pid`, now."""
    state = state_of(pid)
    if state in ("T", "t", "Z"):
        return Waiting("suspended" if state == "T" else "unknown", _STATES[state], state)
    call, arguments = _system_call(pid)
    if state == "D":
        target = _behind(pid, arguments[0]) if call in _READS | _WRITES and arguments else None
        return Waiting("disk", _STATES["D"] + (f", at {target}" if target else ""), state, call, target)
    if state == "R" or call == "running":
        return Waiting("nothing", "nothing: it computes", state)
    if call is None:
        place = read_text(f"/proc/{pid}/wchan").strip("0\n ")
        if "futex" in place:
            return Waiting("lock", "a lock", state)
        known = f" (in the kernel: {place})" if place else ""
        return Waiting("unknown", f"something the system does not tell{known}", state)
    return _waiting_in(pid, state, call, arguments)


def _waiting_in(pid: int, state: str, call: str, arguments: list[int]) -> Waiting:
    if call == "futex":
        return Waiting("lock", "a lock", state, call)
    if call == "nanosleep":
        return Waiting("sleep", "time to pass: it sleeps", state, call)
    if call in ("wait4", "waitid"):
        return Waiting("child", "a child process to end", state, call)
    if call in ("flock", "fcntl"):
        target = _behind(pid, arguments[0])
        return Waiting("lock", f"a lock on the file {target}", state, call, target)
    if call in _READS | _WRITES:
        target = _behind(pid, arguments[0])
        kind = _kind_of(target)
        verb = "data from" if call in _READS else "room to write to"
        return Waiting(kind, f"{verb} {target}", state, call, target)
    targets = [_behind(pid, fd) for fd in _polled(pid, call, arguments)]
    if targets:
        return Waiting(_kind_of(targets[0]), f"something from {', '.join(targets[:3])}", state, call, targets[0])
    return Waiting("unknown", f"something from one of its descriptors ({call})", state, call)


def state_of(pid: int) -> str:
    """The state letter of a process: R, S, D, T, t, Z, or ? where there is none."""
    text = read_text(f"/proc/{pid}/stat")
    rest = text.rpartition(")")[2].split()
    return rest[0] if rest else "?"


def _system_call(pid: int) -> tuple[str | None, list[int]]:
    text = read_text(f"/proc/{pid}/syscall").split()
    if not text:
        return None, []
    if text[0] == "running":
        return "running", []
    table = _CALLS.get(platform.machine(), {})
    try:
        number, arguments = int(text[0]), [int(word, 16) for word in text[1:7]]
    except ValueError:
        return None, []
    return table.get(number), arguments


def _polled(pid: int, call: str, arguments: list[int]) -> list[int]:
    """The descriptors that `poll` was given, read from the process's own memory."""
    if call not in ("poll", "ppoll") or len(arguments) < 2:
        return []
    address, count = arguments[0], min(arguments[1], 8)
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            data = memory.read(count * 8)
    except (OSError, ValueError, OverflowError):
        return []
    return [int.from_bytes(data[at : at + 4], "little", signed=True) for at in range(0, len(data) - 7, 8)]


def _behind(pid: int, fd: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"
    if target.startswith("socket:"):
        return f"a socket{_peer(pid, target[8:-1])}"
    if target.startswith("pipe:"):
        return f"a pipe (descriptor {fd}, {target})"
    return target


def _kind_of(target: str) -> str:
    for kind in ("socket", "pipe"):
        if target.startswith(f"a {kind}"):
            return kind
    return "file" if target.startswith("/") else "unknown"


def _peer(pid: int, inode: str) -> str:
    """` to 10.0.0.7:443` where the socket is a connection over IP."""
    for table, size in (("tcp", 4), ("tcp6", 16)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] == inode:
                return f" to {_address(words[2], size)}" if words[3] == "01" else f" ({_address(words[1], size)})"
    return ""


def _address(text: str, size: int) -> str:
    host, _, port = text.partition(":")
    if size == 4:
        parts = [str(int(host[at : at + 2], 16)) for at in (6, 4, 2, 0)]
        return f"{'.'.join(parts)}:{int(port, 16)}"
    return f"[{host.lower()}]:{int(port, 16)}"


def read_text(path: str) -> str:
    """A file's text, or nothing where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
