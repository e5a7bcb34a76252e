"""Which memory of this process other processes can write to."""

from __future__ import annotations

import bisect


class SharedMaps:
    """The writable shared mappings of this process, read once, when first asked."""

    def __init__(self) -> None:
        self._starts: list[int] | None = None
        self._ends: list[int] = []

    def writable_shared(self, address: int) -> bool:
        """Whether `address` lies in memory that is shared and writable."""
        if self._starts is None:
            self._read()
        assert self._starts is not None
        at = bisect.bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ends[at]

    def _read(self) -> None:
        self._starts = []
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                for line in maps:
                    span, permissions, *rest = line.split(maxsplit=5)
                    if permissions.startswith("rw") and permissions.endswith("s") and not _ours(rest):
                        start, end = span.split("-")
                        self._starts.append(int(start, 16))
                        self._ends.append(int(end, 16))
        except OSError:
            pass  # elsewhere than on Linux nobody tells


def _ours(rest: list[str]) -> bool:
    """A slot of ours: a batch that the dataset keeps; nobody writes to it while it is leased."""
    return bool(rest) and "memfd:unjam-" in rest[-1]
