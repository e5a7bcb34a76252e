"""Records mapped files that were truncated: a process that reads past the new end is killed by SIGBUS."""

from __future__ import annotations

import os
import sys

from unjam.doctor.check.target import file_events
from unjam.doctor.check.target.observer import Observer
from unjam.doctor.facts.faults import ShrunkFile
from unjam.system.file_owner import is_installed
from unjam.system.proc_files import memory_maps

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _mapped_bytes() -> dict[str, int]:
    """The data files that this process has mapped, and up to which byte."""
    ends: dict[str, int] = {}
    for one in memory_maps():
        if not one.path.startswith("/") or not one.inode or "x" in one.permissions:
            continue
        if one.path.endswith(" (deleted)") or one.path.startswith(("/dev/", "/memfd:", "/SYSV")) or ".so" in one.path:
            continue
        ends[one.path] = max(ends.get(one.path, 0), one.offset + one.end - one.start)
    interpreter = os.path.realpath(sys.executable)
    return {path: end for path, end in ends.items() if path != interpreter and not is_installed(path)}


def _shrunk(ends: dict[str, int]) -> list[tuple[str, int, int]]:
    """Each mapped file that is shorter than its mapping: path, mapped bytes, bytes that it has.

    Some libraries map more than the size of a file, so that it can grow. So `_full_size` keeps the files that once had the
    size of their mapping.
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
            _full_size.add(path)
    return found


MOST = 50
_known: set[str] = set()
_recorded: set[str] = set()
_full_size: set[str] = set()  # files that were once as long as their mappings


def record_mapped_files(observer: Observer) -> bool:
    """Record the mapped files and those shorter than their mappings, each once. Returns whether there are any of the latter."""
    ends = _mapped_bytes()
    if new := [path for path in ends if path not in _known][:MOST]:
        _known.update(new)
        observer.write("mapped", paths=new)
    found = _shrunk(ends)
    for path, end, size in found:
        if path not in _recorded:
            _recorded.add(path)
            observer.record(ShrunkFile(path, end, size, file_events.opened_at(path), path in _full_size))
    return bool(found)
