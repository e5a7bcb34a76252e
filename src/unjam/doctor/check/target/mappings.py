"""Files that are mapped into memory and have become shorter since: touching what is gone ends the process with SIGBUS."""

from __future__ import annotations

import os
import sys

from unjam.doctor.check.target import openers
from unjam.doctor.check.target.observer import Observer
from unjam.system.file_owner import is_installed

_PAGE = os.sysconf("SC_PAGE_SIZE")


def mapped() -> dict[str, int]:
    """The data files that this process has mapped, and how far."""
    ends: dict[str, int] = {}
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(maxsplit=5)
                if len(words) < 6 or not words[5].startswith("/") or words[4] == "0" or "x" in words[1]:
                    continue
                path = words[5].rstrip("\n")
                if path.endswith(" (deleted)") or path.startswith(("/dev/", "/memfd:", "/SYSV")) or ".so" in path:
                    continue
                first, _, last = words[0].partition("-")
                ends[path] = max(ends.get(path, 0), int(words[2], 16) + int(last, 16) - int(first, 16))
    except OSError:
        return {}
    interpreter = os.path.realpath(sys.executable)
    return {path: end for path, end in ends.items() if path != interpreter and not is_installed(path)}


def shrunk(ends: dict[str, int]) -> list[tuple[str, int, int]]:
    """Each mapped file that is shorter than its mapping: path, mapped bytes, bytes that it has.

    Some libraries map more than a file has, for it to grow into: what was seen to be longer is told apart by `tell`.
    """
    found = []
    for path, end in ends.items():
        try:
            size = os.stat(path).st_size
        except OSError:
            continue
        if end > -(-size // _PAGE) * _PAGE:
            found.append((path, end, size))
        else:
            _whole.add(path)
    return found


MOST = 50
_known: set[str] = set()
_told: set[str] = set()
_whole: set[str] = set()  # files that were seen to be as long as their mappings


def tell(observer: Observer) -> bool:
    """Write down what is mapped, and the files that are shorter than their mappings now, each once; whether there are any."""
    ends = mapped()
    if new := [path for path in ends if path not in _known][:MOST]:
        _known.update(new)
        observer.write("mapped", paths=new)
    found = shrunk(ends)
    for path, end, size in found:
        if path not in _told:
            _told.add(path)
            place = openers.line_of(path)
            at = {"file": place.file, "line": place.line} if place is not None else {}
            observer.write("shrunk", path=path, mapped=end, size=size, whole=path in _whole, **at)
    return bool(found)
