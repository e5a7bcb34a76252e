"""What this process may use: shared memory, descriptors, processors."""

from __future__ import annotations

import os
import resource


def shared_memory() -> tuple[int | None, int | None]:
    """Bytes free and bytes in all of /dev/shm."""
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None, None
    return room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize


def descriptors() -> tuple[int, int]:
    """How many descriptors a process may have, and how many this one has."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return soft, used


def processors() -> int:
    """Processors that this process may run on, or fewer where a container's quota allows fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(allowed, quota)) if quota else allowed


def _quota() -> int | None:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            most, period = file.read().split()
        return None if most == "max" else max(1, round(int(most) / int(period)))
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", encoding="ascii") as file:
            most_1 = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us", encoding="ascii") as file:
            period_1 = int(file.read())
        return None if most_1 <= 0 else max(1, round(most_1 / period_1))
    except (OSError, ValueError):
        return None
