"""Reads the small text files of /proc and /sys, and the ends of larger files.

psutil would read the same files, but importing it takes longer than all of these calls together, and most
of what unjam needs (scheduler statistics, system calls, cgroups, locks) is not in it.
"""

from __future__ import annotations

import os


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


def is_number(text: str) -> bool:
    """Whether a text is a whole number of at most nine digits, such as a process number."""
    return len(text) < 10 and text.isascii() and text.isdecimal()


def thread_ids(pid: int | str) -> list[int]:
    """The thread numbers of a process, in ascending order."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
