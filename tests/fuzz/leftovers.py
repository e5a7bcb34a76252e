"""What a process still has when its loaders are gone: children, descriptors, threads, shared memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter

import psutil


def _children():
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
            known = (
                "resource_tracker" in line
                or "multiprocessing.forkserver" in line
                or "unjam.loader.worker.server" in line
            )
            if not known or child.ppid() != os.getpid():
                found.add(f"{child.pid} {child.name()} {child.status()}")
        except psutil.NoSuchProcess:
            continue
        except psutil.ZombieProcess:
            found.add(f"{child.pid} zombie")
    return found


def _descriptors():
    kinds = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if "/pym-" not in target:  # multiprocessing keeps its heap for later
            kinds[target.split(":[")[0]] += 1
    return kinds


def _segments():
    """Names in /dev/shm that this process or one of its children made."""
    mine = {str(os.getpid())} | {str(child.pid) for child in psutil.Process().children(recursive=True)}
    return {name for name in os.listdir("/dev/shm") if any(part in mine for part in name.split("_"))}


def _mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:unjam" in line or "/unjam-" in line for line in maps)


class Snapshot:
    """What this process has now."""

    def __init__(self):
        gc.collect()
        self.children, self.descriptors, self.segments = _children(), _descriptors(), _segments()
        self.threads, self.mappings = {thread.ident for thread in threading.enumerate()}, _mappings()

    def added(self, patience):
        """What is there now and was not then, after waiting so many seconds for it to go."""
        until = time.monotonic() + patience
        while True:
            left = self._added_now()
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.02)

    def _added_now(self):
        gc.collect()
        left = {}
        if extra := _children() - self.children:
            left["children"] = sorted(extra)
        if extra := _descriptors() - self.descriptors:
            left["descriptors"] = dict(extra)
        if extra := _segments() - self.segments:
            left["segments"] = sorted(extra)
        if extra := [thread.name for thread in threading.enumerate() if thread.ident not in self.threads]:
            left["threads"] = extra
        if (extra := _mappings() - self.mappings) > 0:
            left["mappings"] = extra
        return left
