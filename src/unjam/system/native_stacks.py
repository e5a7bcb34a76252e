"""Finds the libraries that a stuck thread is in, by the return addresses on its stack."""

from __future__ import annotations

import os
import struct

from unjam.system import system_calls
from unjam.system.proc_files import memory_maps

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
    mapped = [one for one in memory_maps(pid) if "x" in one.permissions and one.path.startswith("/")]
    data = system_calls.peek(pid, call.stack, DEPTH)
    found: list[str] = []
    for (address,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
        path = next((one.path for one in mapped if one.start <= address < one.end), "")
        if path and path not in found:
            found.append(path)
        if len(found) >= 12:
            break
    return found
