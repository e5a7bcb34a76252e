"""Files that are mapped into memory and have become shorter since: touching what is gone ends the process with SIGBUS."""

from __future__ import annotations

import os

from unjam.doctor.check.target import openers
from unjam.doctor.check.target.observer import Observer

_PAGE = os.sysconf("SC_PAGE_SIZE")


def shrunk() -> list[tuple[str, int, int]]:
    """Each mapped file that is shorter than its mapping: path, mapped bytes, bytes that it has."""
    ends: dict[str, int] = {}
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(maxsplit=5)
                if len(words) < 6 or not words[5].startswith("/") or words[4] == "0" or "x" in words[1]:
                    continue
                first, _, last = words[0].partition("-")
                path = words[5].rstrip("\n")
                ends[path] = max(ends.get(path, 0), int(words[2], 16) + int(last, 16) - int(first, 16))
    except OSError:
        return []
    found = []
    for path, end in ends.items():
        if path.endswith(" (deleted)") or path.startswith(("/dev/", "/memfd:", "/SYSV")) or ".so" in path:
            continue
        try:
            size = os.stat(path).st_size
        except OSError:
            continue
        if end > -(-size // _PAGE) * _PAGE:
            found.append((path, end, size))
    return found


_told: set[str] = set()


def tell(observer: Observer) -> bool:
    """Write down the files that are shorter than their mappings now, each once; return whether there are any."""
    found = shrunk()
    for path, mapped, size in found:
        if path not in _told:
            _told.add(path)
            place = openers.line_of(path)
            at = {"file": place.file, "line": place.line} if place is not None else {}
            observer.write("shrunk", path=path, mapped=mapped, size=size, **at)
    return bool(found)
