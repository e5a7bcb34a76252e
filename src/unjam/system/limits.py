"""What this process may use: shared memory, descriptors, processors; and the ranks beside it."""

from __future__ import annotations

import math
import os

_CGROUP = "/sys/fs/cgroup"
# variables in which launchers give the number of ranks on the machine
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def shared_memory() -> tuple[int | None, int | None]:
    """Free bytes and total bytes of /dev/shm; None if unknown."""
    try:
        room = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None, None
    return room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize


def descriptors() -> tuple[int, int]:
    """How many descriptors this process may have, and how many it has."""
    try:
        import resource  # noqa: PLC0415 - not on every system

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:
        soft = 512
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = 0
    return soft, used


def processors() -> int:
    """Processors that this process may run on, or fewer where a container's quota allows fewer."""
    allowed, quota = _affinity(), _quota()
    return max(1, min(allowed, round(quota))) if quota else allowed


def own_processors() -> int:
    """The processors of this rank: ranks that are not bound to processors share the machine's."""
    ranks = local_ranks()
    bound = _affinity() < (os.cpu_count() or 1)
    return processors() if bound else max(1, processors() // ranks)


def local_ranks() -> int:
    """How many ranks of a distributed job run on this machine, according to its launcher."""
    for name in _LOCAL_RANKS:
        word = os.environ.get(name, "").partition("(")[0]  # SLURM writes 4(x2)
        if word.isdigit() and int(word) > 0:
            return int(word)
    return 1


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota() -> float | None:
    """The smallest processor quota of this process's cgroup and the cgroups above it."""
    known = [n for n in (_quota_2(), _quota_1()) if n is not None]
    return min(known) if known else None


def _quota_2() -> float | None:
    tightest, folder = math.inf, _CGROUP + own_cgroup("")
    while folder.startswith(_CGROUP):
        try:
            with open(f"{folder}/cpu.max", encoding="ascii") as file:
                most, period = file.read().split()
            if most != "max":
                tightest = min(tightest, int(most) / int(period))
        except (OSError, ValueError):
            pass
        folder = folder.rpartition("/")[0]
    return None if tightest == math.inf else tightest


def _quota_1() -> float | None:
    tightest, folder = math.inf, f"{_CGROUP}/cpu{own_cgroup('cpu')}"
    while folder.startswith(f"{_CGROUP}/cpu"):
        try:
            with open(f"{folder}/cpu.cfs_quota_us", encoding="ascii") as file:
                most = int(file.read())
            with open(f"{folder}/cpu.cfs_period_us", encoding="ascii") as file:
                period = int(file.read())
            if most > 0:
                tightest = min(tightest, most / period)
        except (OSError, ValueError):
            pass
        folder = folder.rpartition("/")[0]
    return None if tightest == math.inf else tightest


def own_cgroup(controller: str) -> str:
    """The cgroup of this process: in version 2 (`""`), or for one controller of version 1."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as groups:
            for line in groups:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if controller in controllers.split(","):
                    return "" if path == "/" else path
    except (OSError, ValueError):
        pass
    return ""


def processor_seconds(pid: int) -> float:
    """Processor time of a process so far; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def own_memory(pid: int) -> int:
    """A process's share of the memory that it maps (PSS), in bytes; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError):
        return 0
