"""What the processes of a trial write down: one file each, a line per event, whole even if the process is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from typing import Any

SUFFIX = ".rec"


class Recorder:
    """This process's file in the trial's folder."""

    def __init__(self, folder: str, worker: int) -> None:
        self.folder = folder
        self.worker = worker
        self.pid = os.getpid()
        self._fd = os.open(f"{folder}/{self.pid}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write("hello", worker=worker)

    def write(self, kind: str, **fields: Any) -> None:
        """One event."""
        fields["k"] = kind
        fields["t"] = time.monotonic()
        line = json.dumps(fields, default=str) + "\n"
        with contextlib.suppress(OSError):  # closed by the user's code, or the folder is gone: the trial is over
            os.write(self._fd, line.encode("utf-8", "replace"))


def read(folder: str) -> dict[int, list[dict[str, Any]]]:
    """Every process's events, by pid."""
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
                    continue  # the process was killed while it wrote
                if isinstance(event, dict):
                    events.append(event)
        found[int(name.removesuffix(SUFFIX))] = events
    return found


def progress(folder: str) -> int:
    """Bytes written by all of them: grows while something happens."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX):
                    total += entry.stat().st_size
    except OSError:
        pass
    return total
