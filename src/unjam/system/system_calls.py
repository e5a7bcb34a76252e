"""System calls that wait: which one a thread is in, its arguments, and how long it can wait."""

from __future__ import annotations

import platform
import struct
import time
from dataclasses import dataclass

from unjam.system.proc_files import read_text

# numbers of the system calls that wait, on the two architectures that training runs on
_NUMBERS = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
        23: "select", 34: "pause", 35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto",
        45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 56: "clone", 58: "vfork", 61: "wait4", 65: "semop", 70: "msgrcv",
        72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 78: "getdents", 128: "sigtimedwait", 130: "sigsuspend",
        202: "futex", 217: "getdents", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
        257: "openat", 262: "fstatat", 270: "pselect6", 271: "ppoll", 275: "splice", 281: "epoll_wait", 288: "accept",
        295: "preadv", 296: "pwritev", 299: "recvmmsg", 332: "statx", 426: "io_uring", 435: "clone", 441: "epoll_pwait2",
    },
    "aarch64": {
        22: "epoll_wait", 25: "fcntl", 32: "flock", 56: "openat", 57: "close", 61: "getdents", 63: "read", 64: "write",
        65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev", 71: "sendfile",
        72: "pselect6", 73: "ppoll", 76: "splice", 79: "fstatat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex",
        101: "nanosleep", 115: "clock_nanosleep", 133: "sigsuspend", 137: "sigtimedwait", 188: "msgrcv", 192: "semtimedop",
        193: "semop", 202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
        220: "clone", 242: "accept", 243: "recvmmsg", 260: "wait4", 291: "statx", 426: "io_uring", 435: "clone",
        441: "epoll_pwait2",
    },
}  # fmt: skip
READS = {"read", "pread64", "readv", "preadv", "recvfrom", "recvmsg", "recvmmsg", "accept", "getdents", "splice"}
WRITES = {"write", "pwrite64", "writev", "pwritev", "sendto", "sendmsg", "connect", "fsync", "fdatasync", "sendfile"}

# which argument of these points to the time that they wait
_TIME_AT = {"epoll_pwait2": 3, "ppoll": 2, "sigtimedwait": 2, "pselect6": 4, "nanosleep": 0}

_PRIVATE = 128
_WAIT_UNTIL = 9
_REALTIME = 256
_ABSOLUTE = 1


@dataclass(frozen=True, slots=True)
class Call:
    """The system call that a thread is in. `name` is None for a call that is not listed above."""

    name: str | None
    arguments: tuple[int, ...] = ()
    stack: int = 0

    @property
    def shared(self) -> bool:
        """Whether it is a futex call for memory that processes share."""
        return self.name == "futex" and len(self.arguments) > 1 and not self.arguments[1] & _PRIVATE


def current(pid: int, tid: int | None = None) -> Call | None:
    """The call that a thread is in; named "running" if it is in none; None if unreadable."""
    words = read_text(f"/proc/{pid}/task/{tid or pid}/syscall").split()
    if not words:
        return None
    if words[0] == "running":
        return Call("running")
    try:
        values = [int(word, 16) for word in words[1:]]
        return Call(_NUMBERS.get(platform.machine(), {}).get(int(words[0])), tuple(values[:6]), values[6])
    except (ValueError, IndexError):
        return None


def peek(pid: int, address: int, count: int) -> bytes:
    """Bytes of another process's memory; fewer, or none, if they cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(count) or b""
    except (OSError, ValueError, OverflowError):
        return b""


def text_at(pid: int, address: int) -> str:
    """A C string of another process."""
    return peek(pid, address, 512).partition(b"\0")[0].decode("utf-8", "replace")


def time_left(pid: int, call: Call) -> float | None:
    """The seconds until the call times out; None: never, or unknown."""
    given = call.arguments
    match call.name:
        case "futex":
            absolute = given[1] & 127 == _WAIT_UNTIL
            clock = time.CLOCK_REALTIME if given[1] & _REALTIME else time.CLOCK_MONOTONIC
            return _time_at(pid, given[3], clock if absolute else None)
        case "poll":
            return _milliseconds(given[2])
        case "epoll_wait":
            return _milliseconds(given[3])
        case "select":
            return _time_at(pid, given[4], fraction=1e-6)
        case "clock_nanosleep":
            return _time_at(pid, given[2], given[0] if given[1] & _ABSOLUTE else None)
    at = _TIME_AT.get(call.name or "")
    return None if at is None else _time_at(pid, given[at])


def _milliseconds(value: int) -> float | None:
    signed = struct.unpack("<i", struct.pack("<I", value & 0xFFFFFFFF))[0]
    return None if signed < 0 else signed / 1000


def _time_at(pid: int, address: int, clock: int | None = None, fraction: float = 1e-9) -> float | None:
    if not address:
        return None
    data = peek(pid, address, 16)
    if len(data) < 16:
        return None
    seconds, rest = struct.unpack("<qq", data)
    moment = seconds + rest * fraction
    try:
        return max(0.0, moment - time.clock_gettime(clock)) if clock is not None else float(moment)
    except OSError:
        return None
