"""Datasets that fail in the ways of real ones, at a place that the test chooses."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Sour(Exception):
    """Its constructor takes two things, so pickle cannot rebuild it from `args`."""

    def __init__(self, path, code):
        super().__init__(f"{path} is sour ({code})")
        self.path = path
        self.code = code


class Locked(Exception):
    """Holds something that no pickler takes."""

    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


class Keyed(Exception):
    """Keyword-only, and frozen after birth."""

    def __init__(self, *, what):
        super().__init__()
        object.__setattr__(self, "what", what)

    def __str__(self):
        return f"keyed {self.what}"


def once(marker: Path | str | None) -> bool:
    """Whether this is the first time; with no marker it always is."""
    if marker is None:
        return True
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def tried(marker: Path) -> int:
    """How often a sample was tried, counted in a file."""
    with open(marker, "ab") as file:
        file.write(b"x")
    return marker.stat().st_size


def hold_the_interpreter():
    """Hours in C with the GIL held: a regular expression that backtracks, as in real datasets."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def end(way: str) -> None:
    """End this process, or never return."""
    match way:
        case "sigkill" | "sigterm" | "sigabrt" | "sigbus" | "sigstop":
            os.kill(os.getpid(), getattr(signal, way.upper()))
        case "sigsegv":
            ctypes.string_at(0)
        case "exit 0":
            os._exit(0)
        case "exit 3":
            os._exit(3)
        case "hang":
            threading.Event().wait(3600)
        case "hold":
            hold_the_interpreter()
        case "spin":
            while True:
                pass
        case "sys.exit":
            sys.exit(4)
        case _:
            raise AssertionError(way)
    if way != "sigstop":
        time.sleep(5)


class Faults(Dataset):
    """Fails in `phase` in a `way`; with a marker only the first time. Sample `at` is the one."""

    def __init__(self, phase="", way="", marker=None, at=5, length=24):
        self.phase, self.way, self.marker, self.at, self.length = phase, way, marker, at, length

    def __len__(self):
        return self.length

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.fail("loading")

    def fail(self, phase):
        if self.phase == phase and once(self.marker):
            end(self.way)

    def __getitem__(self, index):
        if index == self.at:
            self.fail("getitem")
            if self.phase == "send" and once(self.marker):
                send_half_and(self.way)
        sample = torch.full((2000,), float(index)), index
        if index == self.at and self.phase == "pickle":
            return (*sample, Reluctant(self))
        if self.phase == "pickle":
            return (*sample, 0)
        return sample


class Reluctant:
    """Ends its process when it is pickled."""

    def __init__(self, faults):
        self.faults = faults

    def __reduce__(self):
        self.faults.fail("pickle")
        return int, (0,)


class Init:
    def __init__(self, faults):
        self.faults = faults

    def __call__(self, worker):
        self.faults.fail("init")


class Collate:
    """Not torch's own, so that a batch may hold anything."""

    def __init__(self, faults):
        self.faults = faults

    def __call__(self, samples):
        if any(sample[1] == self.faults.at for sample in samples):
            self.faults.fail("collate")
        stacked, *rest = zip(*samples, strict=True)
        return [torch.stack(stacked), *map(list, rest)]


def send_half_and(way: str) -> None:
    """The next batch that this worker sends stops half-way, and so does the worker."""
    from unjam.loader.transport.channel import Channel
    from unjam.loader.transport.unpacking import PackedBatch

    post, flush = Channel.post, Channel.flush

    def flush_half(self):
        view = memoryview(self._outbox[0][0])
        self._socket.send(view[: len(view) // 2])
        end(way)

    def post_half(self, message, data=b"", fds=()):
        Channel.flush = flush_half if isinstance(message, PackedBatch) else flush
        post(self, message, data, fds)

    Channel.post = post_half


class Broken(Dataset):
    """Raises what it is told to, or returns what it is told to, for some indices."""

    def __init__(self, bad, length=24):
        self.bad, self.length = bad, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            what = self.bad[index]
            if isinstance(what, BaseException):
                raise what
            return what() if callable(what) else what
        return {"x": torch.full((4,), float(index)), "y": index}


class BadStream(IterableDataset):
    """Raises at a number of its own; a generator, or an iterator that can go on."""

    def __init__(self, at, length=12, *, goes_on):
        self.at, self.length, self.goes_on = at, length, goes_on

    def __iter__(self):
        info = get_worker_info()
        step = 1 if info is None else info.num_workers
        numbers = range(0 if info is None else info.id, self.length, step)
        return _GoesOn(numbers, self.at) if self.goes_on else self._generate(numbers)

    def _generate(self, numbers):
        for number in numbers:
            if number == self.at:
                raise ValueError(f"bad {number}")
            yield number


class _GoesOn:
    def __init__(self, numbers, at):
        self.numbers, self.at = iter(numbers), at

    def __iter__(self):
        return self

    def __next__(self):
        number = next(self.numbers)
        if number == self.at:
            raise ValueError(f"bad {number}")
        return number
