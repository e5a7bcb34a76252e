"""How much memory is left for this process: the machine's, or less where a container sets a limit; and who was killed."""

from __future__ import annotations

import os
from dataclasses import dataclass

_CGROUP = "/sys/fs/cgroup"


def available_memory() -> int | None:
    """Bytes that can still be taken without swapping or being killed, or None where nobody tells."""
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
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as groups:
            path = next((line.split("::", 1)[1].strip() for line in groups if line.startswith("0::")), None)
    except OSError:
        return None
    if path is None:
        return None
    folder, tightest = _CGROUP + path, None
    while folder.startswith(_CGROUP):
        left = _left(f"{folder}/memory.max", f"{folder}/memory.current", f"{folder}/memory.stat", "inactive_file ")
        if left is not None:
            tightest = left if tightest is None else min(tightest, left)
        folder = folder.rpartition("/")[0]
    return tightest


def _cgroup_1() -> int | None:
    memory = f"{_CGROUP}/memory"
    return _left(
        f"{memory}/memory.limit_in_bytes",
        f"{memory}/memory.usage_in_bytes",
        f"{memory}/memory.stat",
        "total_inactive_file ",
    )


def _left(limit_file: str, usage_file: str, stat_file: str, reclaimable: str) -> int | None:
    try:
        with open(limit_file, encoding="ascii") as file:
            limit = int(file.read())
        with open(usage_file, encoding="ascii") as file:
            usage = int(file.read())
        with open(stat_file, encoding="ascii") as file:
            cache = next((int(line.split()[1]) for line in file if line.startswith(reclaimable)), 0)
    except (OSError, ValueError):
        return None  # "max" is no limit
    return max(0, limit - usage + cache)


@dataclass(frozen=True, slots=True)
class Kills:
    """How often the system has killed a process for memory, and who counted."""

    count: int
    source: str


def oom_kills(pid: int | str = "self") -> Kills | None:
    """The count of a process's own cgroup where it can be read, else the machine's."""
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
