"""Which libraries a stuck thread is in, without a debugger: return addresses found on its stack."""

from __future__ import annotations

import os
import struct

DEPTH = 64 * 1024
# every thread is in these; they say nothing
_DULL = ("libc.so", "libc-", "ld-linux", "libpthread", "python", "[", "libm.so")


def libraries_on_stack(pid: int) -> tuple[str, ...]:
    """The libraries whose code lies on the main thread's stack, innermost first; nothing where it cannot be read."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            words = file.read().split()
        pointer = int(words[-2], 16)
        mapped = _executable(pid)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            data = memory.read(DEPTH)
    except (OSError, ValueError, IndexError, OverflowError):
        return ()
    found: list[str] = []
    for (address,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8]):
        for low, high, name in mapped:
            if low <= address < high:
                if name not in found and not name.startswith(_DULL):
                    found.append(name)
                break
        if len(found) >= 6:
            break
    return tuple(found)


def _executable(pid: int) -> list[tuple[int, int, str]]:
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if "x" in fields[1] and len(fields) == 6 and fields[5].startswith("/"):
                low, _, high = fields[0].partition("-")
                found.append((int(low, 16), int(high, 16), os.path.basename(fields[5].strip())))
    return found
