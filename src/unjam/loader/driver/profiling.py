"""`profile=True`: measures where the workers' time goes, by transform and by line.

Lines are sampled: a few dozen times a second we ask one worker's fault handler for its stack. That
works without ptrace and while C code holds the GIL. Idle workers are not sampled.
"""

from __future__ import annotations

import linecache
import pickle
import random
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unjam.loader.transport import channel
from unjam.loader.transport.status_page import Stage
from unjam.statistics import LineTime, Profile, TransformTime

# average seconds between two stack samples, of one worker each
INTERVAL = 0.02
MAX_LINES = 30
_AT_WORK = {Stage.GETITEM: "getitem", Stage.COLLATE: "collate", Stage.PICKLE: "pickle", Stage.SEND: "send"}


def together(profilers: list[Profiler]) -> Profile:
    """Return one profile for several loaders."""
    whole = Profiler()
    for one in profilers:
        whole.take(one)
    return whole.report()


class Profiler:
    """Collects where one loader's workers spend their time, in all epochs."""

    def __init__(self) -> None:
        self._transforms: dict[tuple[str, str], list[int]] = {}
        self._lines: Counter[tuple[str, str, int, str, str]] = Counter()
        self._looks = 0
        self._stop = threading.Event()

    def add(self, taken: bytes) -> None:
        """Add what a worker measured while it made a batch."""
        self._add_transforms(pickle.loads(taken))

    def take(self, other: Profiler) -> None:
        """Add what another profiler collected."""
        self._lines.update(other._lines)
        self._looks += other._looks
        self._add_transforms(other._transforms)

    def _add_transforms(self, times: Mapping[tuple[str, str], Sequence[int]]) -> None:
        for key, values in times.items():
            known = self._transforms.get(key, (0, 0, 0))
            self._transforms[key] = [one + other for one, other in zip(known, values, strict=True)]

    def watch(self, pool: Any) -> None:
        """Sample the workers of a pool until it is closed.

        Without workers we only time transforms: a sampling thread in the training process would see the
        loading code only where it releases the GIL, which gives a wrong picture.
        """
        self._stop.set()
        if pool is not None:
            self._stop = threading.Event()
            target = (self._stop, weakref.ref(pool))
            threading.Thread(target=self._run, args=target, name="unjam-profiler", daemon=True).start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()

    def _run(self, stop: threading.Event, pool_ref: Any) -> None:
        turn = 0
        rng = random.Random()  # noqa: S311 - a fixed interval could synchronise with the samples
        while not stop.wait(INTERVAL * rng.uniform(0.5, 1.5)):
            pool = pool_ref()
            if pool is None or pool.closed:
                return
            turn += 1
            seen = pool.sample_stack(turn)
            if seen is not None and seen[0] in _AT_WORK:
                self._count(_AT_WORK[seen[0]], seen[1])
            del pool, seen

    def _count(self, stage: str, text: str) -> None:
        from unjam.system import stacks  # noqa: PLC0415 - only for profiles
        from unjam.system.file_owner import is_users  # noqa: PLC0415 - as above

        stack = stacks.main_stack(text)
        if stack is None or not stack.frames or any(frame.file == channel.__file__ for frame in stack.frames):
            return  # an incomplete stack; or a worker in the channel, which is idle
        self._looks += 1
        frames = [(frame.file, frame.line or 0, frame.function) for frame in stack.frames]
        inner = frames[0]
        own = next((frame for frame in frames if is_users(frame[0])), None)
        place = own or inner
        inside = "" if place is inner else f"{inner[2]} ({inner[0].rpartition('/')[2]}:{inner[1]})"
        self._lines[stage, place[0], place[1], place[2], inside] += 1

    def report(self) -> Profile:
        """Return the profile for `statistics()`."""
        merged: dict[tuple[str, str, int, str], Counter[str]] = {}
        for (stage, file, line, function, inside), looks in list(self._lines.items()):
            merged.setdefault((stage, file, line, function), Counter())[inside] += looks
        lines = [
            LineTime(
                file,
                line,
                function,
                stage,
                sum(inner.values()),
                sum(inner.values()) / max(1, self._looks),
                linecache.getline(file, line).strip(),
                next((name for name, _ in inner.most_common(1) if name), ""),
            )
            for (stage, file, line, function), inner in merged.items()
        ]
        transforms = [
            TransformTime(path, name, count, total / 1e9, own / 1e9)
            for (path, name), (count, total, own) in list(self._transforms.items())
        ]
        return Profile(
            self._looks,
            tuple(sorted(lines, key=lambda one: -one.looks)[:MAX_LINES]),
            tuple(sorted(transforms, key=lambda one: -one.own)),
        )
