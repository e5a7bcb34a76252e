"""Reads the small text files of /proc and /sys, and the ends of larger files.

psutil would read the same files, but importing it takes longer than all of these calls together, and most
of what unjam needs (scheduler statistics, system calls, cgroups, locks) is not in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass


def read_text(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_end(path: str, most: int = 4000) -> str:
    """The end of a file that may be large; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def stat_fields(thread: int | str) -> list[str]:
    """The fields of `/proc/{thread}/stat` that follow the name, from the state on; empty if it cannot be read.

    thread: a process number, or "PID/task/TID". Field n of proc(5) has index n - 3.
    """
    return read_text(f"/proc/{thread}/stat").rpartition(")")[2].split()


def field(path: str, name: str) -> list[str]:
    """The words after `name:` in a file of such lines; empty if there is none."""
    return next((line.split()[1:] for line in read_text(path).splitlines() if line.startswith(f"{name}:")), [])


def descriptor_target(fd: int | str | None, pid: int | str = "self") -> str:
    """The file, pipe or socket behind a descriptor; empty if unknown."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """The open descriptors of a process, each with the file, pipe or socket behind it; empty if they cannot be read."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(f"/proc/{pid}/fd")
    # one that cannot be read is closed by now, such as the one of the folder itself
    return {int(name): target for name in names if (target := descriptor_target(name, pid))}


def descriptor_flags(fd: int, pid: int | str = "self", *, unknown: int = os.O_RDONLY) -> int:
    """The flags that a descriptor was opened with."""
    words = field(f"/proc/{pid}/fdinfo/{fd}", "flags")
    return int(words[0], 8) if words else unknown


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """A range of a process's memory. offset: in its file, whose path may be followed by " (deleted)"."""

    start: int
    end: int
    permissions: str
    offset: int
    device: tuple[int, int]
    inode: int
    path: str


def memory_maps(pid: int | str = "self") -> Iterator[MemoryMap]:
    """The mapped memory of a process, in ascending order; empty if it cannot be read."""
    # paths may contain what `splitlines` takes for the end of a line
    for line in read_text(f"/proc/{pid}/maps").split("\n")[:-1]:
        span, permissions, offset, device, inode, *path = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in span.split("-"))
        major, minor = (int(number, 16) for number in device.split(":"))
        yield MemoryMap(start, end, permissions, int(offset, 16), (major, minor), int(inode), path[0] if path else "")


def tcp_sockets(pid: int | str = "self") -> Iterator[tuple[list[str], int]]:
    """The rows of the TCP tables of a process's network namespace, each with the bytes of its addresses."""
    for table, size in (("tcp", 4), ("tcp6", 16)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            row = line.split()
            if len(row) > 9:
                yield row, size


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most nine digits, such as a process number."""
    return len(text) < 10 and text.isascii() and text.isdecimal()


def thread_ids(pid: int | str) -> list[int]:
    """The thread numbers of a process, in ascending order."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
