"""Who opened which file: the user's line for each path, from Python's audit events."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from unjam.doctor.facts.trial import Place, users_place

MOST = 2000
_IGNORED = (".py", ".pyc", ".pyi", ".so", ".dist-info")

opened: dict[str, Place] = {}  # real path -> the line that opened it last
counts: Counter[Place] = Counter()  # how often each line opened a file
created: dict[str, Place | None] = {}  # files that a sample created in a way that only one process can
_collected: list[list[str]] = []  # where the paths that are opened now go


def hear(arguments: tuple[Any, ...], frame: Any) -> None:
    """Note an `open`."""
    path, _, flags = arguments
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    text = os.fsdecode(path)
    if text.endswith(_IGNORED) or text.startswith(("/proc/", "/dev/", "/sys/")):
        return
    if _collected and len(_collected[0]) < 50 and not os.path.isdir(text):
        _collected[0].append(text)
    if len(opened) > MOST and len(counts) > MOST:
        return
    place = users_place(frame)
    full = os.path.abspath(text)
    if isinstance(flags, int) and flags & os.O_EXCL and flags & os.O_CREAT:
        created[full] = place
    if place is not None:
        opened[full] = place
        counts[place] += 1


def line_of(target: str) -> Place | None:
    """Return the line that opened a file, by its path."""
    return opened.get(target.removesuffix(" (deleted)"))


def collect_opened() -> list[str]:
    """A list that gets the paths that are opened from now on."""
    _collected[:] = [[]]
    return _collected[0]


def collect_no_more() -> None:
    """End what `collect_opened` began."""
    _collected.clear()


def busiest() -> dict[str, Any]:
    """The line that opened most files, as fields of an event."""
    for place, _ in counts.most_common(1):
        return {"file": place.file, "line": place.line}
    return {}
