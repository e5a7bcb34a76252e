"""Records what the program does to files and folders that its samples may need."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from unjam.doctor.check.target.observer import Observer, place_fields

_EVENTS = {"os.remove": "removed", "os.rmdir": "removed", "shutil.rmtree": "removed", "os.rename": "moved", "os.chdir": "entered",
           "os.truncate": "cut"}  # fmt: skip
MOST = 400


def record_deeds(observer: Observer) -> None:
    """Write down removed and moved files and changed folders, each with the user's line."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        done = _EVENTS.get(event)
        if done is None and event == "open":
            _opened(arguments)
            return
        if done is None or count[0] > MOST or not observer.active:
            return
        with contextlib.suppress(Exception):
            path = _full(*arguments[:2])
            place = place_fields(sys._getframe(1))  # noqa: SLF001 - the caller's frame
            if place and path:
                count[0] += 1
                observer.write("deed", done=done, path=path, **place)

    sys.addaudithook(hook)


def _full(path: Any, folder: Any = -1) -> str:
    """A path that may be relative to the current folder or to an open one."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    return os.path.abspath(text)


_collected: list[list[str]] = []  # where the paths that are opened now go


def _opened(arguments: tuple[Any, ...]) -> None:
    if _collected and isinstance(arguments[0], str) and len(_collected[0]) < 50:
        _collected[0].append(arguments[0])


def collect_opened() -> list[str]:
    """A list that gets the paths that are opened from now on."""
    _collected[:] = [[]]
    return _collected[0]


def collect_no_more() -> None:
    """End what `collect_opened` began."""
    _collected.clear()
