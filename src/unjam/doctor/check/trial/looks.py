"""Looks at the loading thread again and again, and counts the user's lines that it finds there."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import Counter

from unjam.deadlines import LOOK_AT_LINES
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users

BEGIN = 0.5  # seconds: shorter loading needs no explanation
MOST = 40
TELL_EVERY = 100
SUFFIX = ".lines"
# below their frames is the program that was captured
_TRIALS = (os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox.py"), "torch/utils/data/_utils/worker.py")


class Looks:
    """A thread that looks at the thread that made it, until `end` or the end of the process.

    What it finds goes into a file of its own: an event log that grows would look like progress.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{os.getpid()}{SUFFIX}"
        self._found: Counter[tuple[str, int]] = Counter()
        self._over = threading.Event()
        self._thread = threading.get_ident()
        timer = threading.Timer(BEGIN, self._look)
        timer.daemon, timer.name = True, "unjam-looks"
        self._timer = timer
        timer.start()

    def _look(self) -> None:
        looks = 0
        while not self._over.wait(LOOK_AT_LINES.seconds):
            looks += 1
            if looks % TELL_EVERY == 0:
                self._tell()
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way
            while frame is not None and not frame.f_code.co_filename.endswith(_TRIALS):
                if is_users(frame.f_code.co_filename):
                    self._found[frame.f_code.co_filename, frame.f_lineno] += 1
                    break
                frame = frame.f_back

    def _tell(self) -> None:
        lines = [(file, line, times) for (file, line), times in list(self._found.most_common(MOST))]
        with contextlib.suppress(OSError), open(self._path, "w", encoding="utf-8") as out:
            json.dump(lines, out)

    def end(self) -> None:
        """Stop looking."""
        self._over.set()
        self._timer.cancel()
        if self._found:
            self._tell()


def hottest(folder: str) -> tuple[tuple[Place, int], ...]:
    """The lines that looks at the processes of a trial found, summed over them, the hottest first."""
    found: Counter[Place] = Counter()
    for name in os.listdir(folder):
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}", encoding="utf-8") as file:
                for path, line, times in json.load(file):
                    found[Place(path, line)] += times
    return tuple(found.most_common())
