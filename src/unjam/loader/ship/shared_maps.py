"""What memory of this process is: shared with others, or a part of a file."""

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
    # where in its file it begins
    offset: int


class SharedMaps:
    """The mappings of this process, read once, when first asked."""

    def __init__(self) -> None:
        self._maps: list[_Map] | None = None

    def writable_shared(self, address: int) -> bool:
        """Whether `address` lies in memory that other processes may see being written."""
        found = self._find(address)
        return found is not None and found.shared_and_writable

    def descriptor(self, address: int) -> tuple[int, int] | None:
        """A descriptor of this process for the memory at `address`, and where in it that is; None: it has kept none."""
        found = self._find(address)
        if found is None or not found.shared_and_writable or not found.inode:
            return None
        for name in os.listdir("/proc/self/fd"):
            try:
                status = os.fstat(int(name))
            except OSError:
                continue  # the one that listed them
            device = (os.major(status.st_dev), os.minor(status.st_dev))
            if status.st_ino == found.inode and device == found.device:
                return int(name), found.offset + address - found.start
        return None

    def is_file(self, address: int, path: str) -> bool:
        """Whether `address` lies in a mapping of the file that is at `path` now."""
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
                # a slot of ours is a batch that the dataset keeps; nobody writes to it while it is leased
                ours = bool(name) and "memfd:unjam-" in name[0]
                shared = permissions.startswith("rw") and permissions.endswith("s") and not ours
                found.append(_Map(start, end, shared, (major, minor), int(inode), int(offset, 16)))
    except OSError:
        pass  # elsewhere than on Linux nobody tells
    return found
