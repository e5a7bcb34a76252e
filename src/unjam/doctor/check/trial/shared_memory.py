"""Memory that processes share, at the captured moment: semaphores, shared values, shared tensors.

Every trial is a fork, so all trials would work on one and the same shared memory, and a worker that one of them kills inside a
lock would leave the lock held for the next. So the twin keeps a copy of each shared region, and a trial begins by laying memory of
its own, with that content, over the same addresses: what the trial's processes share, they share among themselves only.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

# more than this is somebody's data set in shared memory: it is read, not written
LARGEST = 64 << 20
_OURS = ("/dev/shm/", "/dev/zero", "/memfd:")
_FIXED = 0x10


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of shared memory and what lay in it."""

    address: int
    content: bytes


def snapshot() -> list[Region]:
    """The writable shared regions of this process."""
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split(maxsplit=5)
        path = fields[5] if len(fields) > 5 else ""
        if fields[1].startswith("rw-s") and path.startswith(_OURS):
            low, high = (int(part, 16) for part in fields[0].split("-"))
            if high - low <= LARGEST:
                found.append(Region(low, ctypes.string_at(low, high - low)))
    return found


def make_own(regions: list[Region]) -> None:
    """Lay memory of this process's own over each region, with what lay in it then."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    how = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _FIXED
    for region in regions:
        size = len(region.content)
        placed = libc.mmap(region.address, size, mmap.PROT_READ | mmap.PROT_WRITE, how, -1, 0)
        if placed == region.address:
            ctypes.memmove(region.address, region.content, size)
