"""Tells whether memory of this process is shared with other processes or maps a file."""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Map:
    start: int
    end: int
    shared_and_writable: bool
    device: tuple[int, int]
    inode: int
    # start of the mapping in its file
    offset: int


class SharedMaps:
    """The memory mappings of this process, read once, on first use."""

    def __init__(self) -> None:
        self._maps: list[_Map] | None = None

    def writable_shared(self, address: int) -> bool:
        """Return whether `address` lies in writable memory shared with other processes."""
        found = self._find(address)
        return found is not None and found.shared_and_writable

    def descriptor(self, address: int) -> tuple[int, int] | None:
        """Return an open descriptor for the shared memory at `address` and the offset, or None."""
        found = self._find(address)
        if found is None or not found.shared_and_writable or not found.inode:
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

    def _find(self, address: int) -> _Map | None:
        if self._maps is None:
            self._maps = _read()
        at = bisect.bisect_right(self._maps, address, key=lambda entry: entry.start) - 1
        return self._maps[at] if at >= 0 and address < self._maps[at].end else None


def _read() -> list[_Map]:
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                span, permissions, offset, device, inode, *name = line.split(maxsplit=5)
                major, minor = (int(number, 16) for number in device.split(":"))
                start, end = (int(number, 16) for number in span.split("-"))
                # our slot, of a batch that the dataset keeps: not written while it is leased
                ours = bool(name) and "memfd:unjam-" in name[0]
                shared = permissions.startswith("rw") and permissions.endswith("s") and not ours
                found.append(_Map(start, end, shared, (major, minor), int(inode), int(offset, 16)))
    except OSError:
        pass  # not on Linux: no such file
    return found
