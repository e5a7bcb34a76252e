"""Finds the libraries that a stuck thread is in, by the return addresses on its stack."""

from __future__ import annotations

import os
import struct

from unjam.system import system_calls
from unjam.system.proc_files import read_text

DEPTH = 64 * 1024
# every blocked thread is in these libraries
_C_LIBRARY = ("libc.so", "libc-", "ld-linux", "libpthread", "[", "libm.so")
_UNINFORMATIVE = (*_C_LIBRARY, "python", "libpython", "libffi", "_ctypes")  # the last two only call other libraries


def libraries_on_stack(pid: int, tid: int | None = None) -> tuple[str, ...]:
    """The libraries on a thread's stack, innermost first; empty if the stack cannot be read."""
    names = [os.path.basename(path) for path in _on_stack(pid, tid)]
    return tuple(name for name in names if not name.startswith(_UNINFORMATIVE))[:6]


def waits_in_library(pid: int, tid: int | None = None) -> bool:
    """Whether a library called the C library's wait, and not the interpreter itself."""
    first = ""  # above the C library
    for path in _on_stack(pid, tid):
        name = os.path.basename(path)
        if name.startswith(("python", "libpython")):
            break
        if name.startswith("_multiprocessing."):
            return False  # its semaphores call only the C library: the rest is left over from earlier calls
        if not first and not name.startswith(_C_LIBRARY):
            first = path
    return bool(first) and "/lib-dynload/" not in first


def _on_stack(pid: int, tid: int | None) -> list[str]:
    call = system_calls.current(pid, tid)
    if call is None or not call.stack:
        return []
    mapped = _executable(pid)
    data = system_calls.peek(pid, call.stack, DEPTH)
    found: list[str] = []
    for (address,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
        for low, high, name in mapped:
            if low <= address < high:
                if name not in found:
                    found.append(name)
                break
        if len(found) >= 12:
            break
    return found


def _executable(pid: int) -> list[tuple[int, int, str]]:
    found = []
    for line in read_text(f"/proc/{pid}/maps").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            low, _, high = fields[0].partition("-")
            found.append((int(low, 16), int(high, 16), fields[5].strip()))
    return found
