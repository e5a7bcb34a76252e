"""How much memory this process can still use, on the machine and in its cgroup; OOM kills."""

from __future__ import annotations

import os
from dataclasses import dataclass

from unjam.system.limits import own_cgroup

_CGROUP = "/sys/fs/cgroup"


def available_memory() -> int | None:
    """Bytes that we can still use without swapping or being killed; None if unknown."""
    known = [n for n in (_machine(), _cgroup_2(), _cgroup_1()) if n is not None]
    return min(known) if known else None


def _machine() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            for line in meminfo:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return None


def _cgroup_2() -> int | None:
    return _tightest(_CGROUP, own_cgroup(""), ("memory.max", "memory.current", "memory.stat", "inactive_file "))


def _cgroup_1() -> int | None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file ")
    return _tightest(f"{_CGROUP}/memory", own_cgroup("memory"), names)


def _tightest(top: str, path: str, names: tuple[str, str, str, str]) -> int | None:
    """The memory left in this process's group or in the one above it that has least."""
    folder, tightest = top + path.rstrip("/"), None
    while folder.startswith(top):
        limit, usage, stat, reclaimable = names
        left = _left(f"{folder}/{limit}", f"{folder}/{usage}", f"{folder}/{stat}", reclaimable)
        if left is not None:
            tightest = left if tightest is None else min(tightest, left)
        folder = folder.rpartition("/")[0]
    return tightest


def _left(limit_file: str, usage_file: str, stat_file: str, reclaimable: str) -> int | None:
    try:
        with open(limit_file, encoding="ascii") as file:
            limit = int(file.read())
        with open(usage_file, encoding="ascii") as file:
            usage = int(file.read())
        with open(stat_file, encoding="ascii") as file:
            cache = next((int(line.split()[1]) for line in file if line.startswith(reclaimable)), 0)
    except (OSError, ValueError):
        return None  # also for the text "max": no limit
    return max(0, limit - usage + cache)


@dataclass(frozen=True, slots=True)
class Kills:
    """How often the system has killed a process for memory; `source`: "cgroup" or "machine"."""

    count: int
    source: str


def oom_kills(pid: int | str = "self") -> Kills | None:
    """The OOM kills in a process's own cgroup if readable, else those of the machine."""
    for path in _counters(pid):
        try:
            with open(path, encoding="ascii") as file:
                for line in file:
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return Kills(int(count), "cgroup" if path.startswith(_CGROUP) else "machine")
        except (OSError, ValueError):
            continue
    return None


def _counters(pid: int | str) -> list[str]:
    paths = []
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as groups:
            for line in groups:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if not controllers:
                    paths += [f"{_CGROUP}{at}/memory.events{local}" for at in (path, "") for local in (".local", "")]
                elif "memory" in controllers.split(","):
                    paths += [f"{_CGROUP}/memory{path}/memory.oom_control", f"{_CGROUP}/memory/memory.oom_control"]
    except (OSError, ValueError):
        pass
    return [*paths, "/proc/vmstat"]
