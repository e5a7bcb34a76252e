"""The file in which a worker of torch's loader records its batches.

The worker maps the file, so nothing is lost if it is killed. Totals come first, then a ring of the
last batches. One process writes the file, another reads it afterwards.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from array import array
from dataclasses import replace

from unjam.doctor.facts.run import TimedBatch
from unjam.system.owned_fd import OwnedFd

HEAD = 4096
RING = 8192
_TOTALS = struct.Struct("<qqqq")  # batches, fetching, collating, pid
_BATCH = struct.Struct("<qqqqq24s")  # begun, collated, done, samples, longest, slowest
NAME = 24
MOST_DETAIL = 64 << 20  # maximum bytes of sample times that one worker writes for a trace
_NAME = re.compile(r"(?P<seed>-?\d+)\.(?P<worker>-?\d{1,9})\.(?P<pid>\d+)\.page")


class BatchFile:
    """The writer."""

    __slots__ = ("_at", "_map", "_totals")

    def __init__(self, path: str) -> None:
        fd = OwnedFd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.ftruncate(fd, HEAD + RING * _BATCH.size)
        self._map = mmap.mmap(fd, HEAD + RING * _BATCH.size)
        # a persistent worker creates a new fetcher for each epoch: continue its totals
        known = list(_TOTALS.unpack_from(self._map, 0))
        self._totals = known if known[3] == os.getpid() else [0, 0, 0, os.getpid()]
        self._at = self._totals[0]

    def batch(self, begun: int, collated: int, done: int, samples: int, longest: int, slowest: object) -> None:
        """Record one batch."""
        totals = self._totals
        totals[0] += 1
        totals[1] += collated - begun
        totals[2] += done - collated
        name = str(slowest)[:NAME].encode("utf-8", "replace")[:NAME]
        _BATCH.pack_into(self._map, HEAD + self._at % RING * _BATCH.size, begun, collated, done, samples, longest, name)
        _TOTALS.pack_into(self._map, 0, *totals)
        self._at += 1


def read(path: str, worker: int) -> tuple[int, int, list[TimedBatch]]:
    """Return the nanoseconds that fetching and collating took in all, and the last batches in time order."""
    with open(path, "rb") as file:
        data = file.read(HEAD + RING * _BATCH.size).ljust(HEAD + RING * _BATCH.size, b"\0")
    batches, fetching, collating, _ = _TOTALS.unpack_from(data, 0)
    made = []
    for at in range(max(0, min(batches, RING))):
        begun, collated, done, samples, longest, name = _BATCH.unpack_from(data, HEAD + at * _BATCH.size)
        slowest = name.rstrip(b"\0").decode("utf-8", "replace")
        made.append(TimedBatch(worker, begun, collated, done, samples, longest, slowest))
    return fetching, collating, sorted(made, key=lambda one: one.begun)


def name_of(folder: str, seed: int, worker: int) -> str:
    """Return the path of the file of this process for one loader.

    The seed identifies the loader: torch's base seed, or without workers a negative number of ours.
    """
    return os.path.join(folder, f"{seed}.{worker}.{os.getpid()}.page")


def of_seed(folder: str, seed: int) -> list[tuple[int, str]]:
    """Return (worker, file) for every process that loaded with this seed."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            known = _NAME.fullmatch(name)
            mine = known is not None and (int(known["worker"]) >= 0 or known["pid"] == str(os.getpid()))
            if known is not None and mine and known["seed"] == str(seed):
                found.append((int(known["worker"]), os.path.join(folder, name)))
    return sorted(found)


def with_samples(made: list[TimedBatch], path: str) -> list[TimedBatch]:
    """Add the times of single samples to the batches, if they were recorded for a trace."""
    try:
        with open(f"{path}.samples", "rb") as file:
            words = array("q")
            data = file.read(MOST_DETAIL)
            words.frombytes(data[: len(data) // 8 * 8])
    except OSError:
        return made
    known: dict[int, tuple[int, ...]] = {}
    at = 0
    while at < len(words) and 2 <= words[at] < len(words) - at:
        begun, *stamps, _ = words[at + 1 : at + 1 + words[at]]
        known[begun] = tuple(stamps)
        at += 1 + words[at]
    return [replace(one, stamps=known.get(one.begun, ())) for one in made]
