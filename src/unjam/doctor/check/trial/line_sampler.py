"""Samples the stack of the loading thread at intervals, and counts the user's lines that it finds there."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import Counter

from unjam.deadlines import LINE_CHECK
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users

BEGIN = 0.5  # seconds: shorter loading needs no explanation
MOST = 40
WRITE_EVERY = 100
SUFFIX = ".lines"
# the frames below theirs belong to the program that was captured
_TRIALS = (os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox.py"), "torch/utils/data/_utils/worker.py")


class LineSampler:
    """A thread that samples the thread that created it, until `end` or the end of the process.

    It writes to its own file, because a growing event log counts as progress.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{os.getpid()}{SUFFIX}"
        self._found: Counter[tuple[str, int]] = Counter()
        self._over = threading.Event()
        self._thread = threading.get_ident()
        timer = threading.Timer(BEGIN, self._sample)
        timer.daemon, timer.name = True, "unjam-line-sampler"
        self._timer = timer
        timer.start()

    def _sample(self) -> None:
        count = 0
        while not self._over.wait(LINE_CHECK.seconds):
            count += 1
            if count % WRITE_EVERY == 0:
                self._write()
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way
            while frame is not None and not frame.f_code.co_filename.endswith(_TRIALS):
                if is_users(frame.f_code.co_filename):
                    self._found[frame.f_code.co_filename, frame.f_lineno] += 1
                    break
                frame = frame.f_back

    def _write(self) -> None:
        lines = [(file, line, times) for (file, line), times in list(self._found.most_common(MOST))]
        with contextlib.suppress(OSError), open(self._path, "w", encoding="utf-8") as out:
            json.dump(lines, out)

    def end(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._timer.cancel()
        self._timer.join(LINE_CHECK.seconds + 1)
        if self._found:
            self._write()


def hottest(folder: str) -> tuple[tuple[Place, int], ...]:
    """The lines found in all processes of a trial, the most frequent first, and how often."""
    found: Counter[Place] = Counter()
    for name in os.listdir(folder):
        if name.endswith(SUFFIX):
            with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}", encoding="utf-8") as file:
                for path, line, times in json.load(file):
                    found[Place(path, line)] += times
    return tuple(found.most_common())
