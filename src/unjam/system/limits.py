"""What this process may use: shared memory, descriptors, processors, and how many ranks of a job share the machine."""

from __future__ import annotations

import math
import os

_CGROUP = "/sys/fs/cgroup"
# what launchers tell a rank about how many there are on its machine
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def shared_memory() -> tuple[int | None, int | None]:
    """Bytes free and bytes in all of /dev/shm."""
    try:
        room = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None, None
    return room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize


def descriptors() -> tuple[int, int]:
    """How many descriptors a process may have, and how many this one has."""
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
    """This rank's part of them: ranks that were not bound to processors of their own share the machine's."""
    ranks = local_ranks()
    bound = _affinity() < (os.cpu_count() or 1)
    return processors() if bound else max(1, processors() // ranks)


def local_ranks() -> int:
    """How many ranks of a distributed job run on this machine, as its launcher says."""
    for name in _LOCAL_RANKS:
        word = os.environ.get(name, "").partition("(")[0]  # SLURM writes 4(x2)
        if word.isdigit() and int(word) > 0:
            return int(word)
    return 1


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota() -> float | None:
    """The tightest quota of this process's control group and those above it."""
    known = [n for n in (_quota_2(), _quota_1()) if n is not None]
    return min(known) if known else None


def _quota_2() -> float | None:
    tightest, folder = math.inf, _CGROUP + _path("")
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
    tightest, folder = math.inf, f"{_CGROUP}/cpu{_path('cpu')}"
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


def _path(controller: str) -> str:
    """Where this process is in the tree of control groups: of version 2, or of one controller of version 1."""
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
    """What a process has computed so far; 0 where nobody tells."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def own_memory(pid: int) -> int:
    """A process's share of the memory that it maps (PSS), in bytes; 0 where nobody tells."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration, ValueError):
        return 0
