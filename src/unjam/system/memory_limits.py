"""How much memory this process can still use, on the machine and in its cgroup; OOM kills."""

from __future__ import annotations

import os
from dataclasses import dataclass

from unjam.system.limits import CGROUP, cgroup_folders
from unjam.system.proc_files import read_text


def available_memory() -> int | None:
    """Bytes that we can still use without swapping or being killed; None if unknown."""
    known = [_machine()]
    known += [_left(folder, "memory.max", "memory.current", "inactive_file") for folder in cgroup_folders()]
    known += [
        _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in cgroup_folders("memory")
    ]
    return min((left for left in known if left is not None), default=None)


def _machine() -> int | None:
    available = _value("/proc/meminfo", "MemAvailable:")
    if available is not None:
        return available * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return None


def _left(folder: str, limit: str, usage: str, reclaimable: str) -> int | None:
    try:
        most, used = int(read_text(f"{folder}/{limit}")), int(read_text(f"{folder}/{usage}"))
    except ValueError:
        return None  # also for the text "max": no limit
    return max(0, most - used + (_value(f"{folder}/memory.stat", reclaimable) or 0))


def _value(file: str, name: str) -> int | None:
    """The number that follows a name in a file with one name and number per line."""
    for line in read_text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


@dataclass(frozen=True, slots=True)
class OomKills:
    """How often the system has killed a process for memory; `source`: "cgroup" or "machine"."""

    count: int
    source: str


def oom_kills(pid: int | str = "self") -> OomKills | None:
    """The OOM kills in a process's own cgroup if readable, else those of the machine."""
    for path in _counter_files(pid):
        count = _value(path, "oom_kill")
        if count is not None:
            return OomKills(count, "cgroup" if path.startswith(CGROUP) else "machine")
    return None


def _counter_files(pid: int | str) -> list[str]:
    paths = []
    for line in read_text(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths += [f"{CGROUP}{at}/memory.events{local}" for at in (path, "") for local in (".local", "")]
        elif "memory" in controllers.split(","):
            paths += [f"{CGROUP}/memory{path}/memory.oom_control", f"{CGROUP}/memory/memory.oom_control"]
    return [*paths, "/proc/vmstat"]
