"""The event logs of a trial: one file per process, one line per event. They survive a kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import Any

SUFFIX = ".rec"


class EventLog:
    """The log file of this process in the trial's folder."""

    def __init__(self, folder: str, worker: int, at: str = "") -> None:
        """at: another name of the folder, to make the file by."""
        self.folder = folder
        self.worker = worker
        self.pid = os.getpid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(f"{at or folder}/{self.pid}{SUFFIX}", flags, 0o600)
        self.write("hello", worker=worker)

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event."""
        fields["k"] = event
        fields["t"] = time.monotonic()
        line = json.dumps(fields, default=str) + "\n"
        with contextlib.suppress(OSError):  # user code closed it, or the trial is over
            os.write(self._fd, line.encode("utf-8", "replace"))


def read(folder: str) -> dict[int, list[dict[str, Any]]]:
    """The events of every process, by pid."""
    found: dict[int, list[dict[str, Any]]] = {}
    for name in sorted(os.listdir(folder)):
        if not re.fullmatch(rf"\d{{1,10}}{re.escape(SUFFIX)}", name, re.ASCII):
            continue
        events = []
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # the process was killed during the write
                if isinstance(event, dict):
                    events.append(event)
        found[int(name.removesuffix(SUFFIX))] = events
    return found


def progress(folder: str) -> int:
    """The size of all logs in bytes; it grows as long as the trial makes progress."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    total += entry.stat().st_size
    except OSError:
        pass
    return total
