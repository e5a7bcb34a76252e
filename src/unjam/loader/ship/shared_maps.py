"""Tells whether memory of this process is shared with other processes or maps a file."""

from __future__ import annotations

import bisect
import os

from unjam.system.proc_files import MemoryMap, memory_maps


class SharedMaps:
    """The memory mappings of this process, read once, on first use."""

    def __init__(self) -> None:
        self._maps: list[MemoryMap] | None = None

    def writable_shared(self, address: int) -> bool:
        """Return whether `address` lies in writable memory shared with other processes."""
        found = self._find(address)
        return found is not None and _is_shared(found)

    def descriptor(self, address: int) -> tuple[int, int] | None:
        """Return an open descriptor for the shared memory at `address` and the offset, or None."""
        found = self._find(address)
        if found is None or not _is_shared(found) or not found.inode:
            return None
        for name in os.listdir("/proc/self/fd"):
            try:
                status = os.fstat(int(name))
            except OSError:
                continue  # the descriptor that listdir used
            device = (os.major(status.st_dev), os.minor(status.st_dev))
            if status.st_ino == found.inode and device == found.device:
                return int(name), found.offset + address - found.start
        return None

    def is_file(self, address: int, path: str) -> bool:
        """Return whether `address` lies in a mapping of the file that is now at `path`."""
        found = self._find(address)
        try:
            return found is None or found.inode == os.stat(path).st_ino
        except OSError:
            return False

    def _find(self, address: int) -> MemoryMap | None:
        if self._maps is None:
            self._maps = list(memory_maps())
        at = bisect.bisect_right(self._maps, address, key=lambda entry: entry.start) - 1
        return self._maps[at] if at >= 0 and address < self._maps[at].end else None


def _is_shared(found: MemoryMap) -> bool:
    # our slot, of a batch that the dataset keeps, is not written while it is leased
    return found.permissions.startswith("rw-s") and "memfd:unjam-" not in found.path
