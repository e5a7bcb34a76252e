"""Looks at the loading thread again and again, and counts the user's lines that it finds there."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter

from unjam.loader.engine.deadlines import LOOK_AT_LINES
from unjam.system.file_owner import is_users

BEGIN = 0.5  # seconds: shorter loading needs no explanation
MOST = 40
_TRIAL = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "sandbox.py"
)  # below its frames is the program that was captured


class Looks:
    """A thread that looks at the thread that made it, until `end`."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, int]] = Counter()
        self._over = threading.Event()
        self._thread = threading.get_ident()
        timer = threading.Timer(BEGIN, self._look)
        timer.daemon, timer.name = True, "unjam-looks"
        self._timer = timer
        timer.start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_AT_LINES.seconds):
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way
            while frame is not None and frame.f_code.co_filename != _TRIAL:
                if is_users(frame.f_code.co_filename):
                    self._found[frame.f_code.co_filename, frame.f_lineno] += 1
                    break
                frame = frame.f_back

    def end(self) -> list[tuple[str, int, int]]:
        """Stop looking; return file, line and how often it was found there, the hottest first."""
        self._over.set()
        self._timer.cancel()
        return [(file, line, times) for (file, line), times in self._found.most_common(MOST)]
