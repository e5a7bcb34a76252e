"""What this process may use (shared memory, descriptors, processors), what a process uses (memory, processor time), and ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

from unjam.system.proc_files import field, read_text, stat_fields

CGROUP = "/sys/fs/cgroup"
# variables in which launchers give the number of ranks on the machine
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def shared_memory(root: str = "") -> tuple[int | None, int | None]:
    """Free bytes and total bytes of /dev/shm below a root folder; None if unknown."""
    try:
        room = os.statvfs(f"{root}/dev/shm")
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
        if word.isdecimal() and int(word) > 0:
            return int(word)
    return 1


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota() -> float | None:
    """The smallest processor quota of this process's cgroup and the cgroups above it."""
    known = [_ratio(f"{folder}/cpu.max") for folder in cgroup_folders()]
    known += [_ratio(f"{folder}/cpu.cfs_quota_us", f"{folder}/cpu.cfs_period_us") for folder in cgroup_folders("cpu")]
    return min((quota for quota in known if quota is not None), default=None)


def _ratio(*files: str) -> float | None:
    """The quota per period; None if there is no limit, for which version 2 writes "max" and version 1 a negative number."""
    try:
        quota, period = (int(word) for file in files for word in read_text(file).split())
    except ValueError:
        return None
    return quota / period if quota > 0 else None


def cgroup_folders(controller: str = "") -> Iterator[str]:
    """The folders of this process's cgroup and of those above it: of version 2, or of one controller of version 1."""
    top = f"{CGROUP}/{controller}".rstrip("/")
    folder = top + _own_cgroup(controller)
    while folder.startswith(top):
        yield folder
        folder = folder.rpartition("/")[0]


def _own_cgroup(controller: str) -> str:
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.rstrip("/")
    return ""


def processor_seconds(thread: int | str) -> float:
    """Processor time of a process or thread (as in `stat_fields`) so far; 0 if unknown."""
    try:
        user, system = stat_fields(thread)[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (ValueError, OverflowError):
        return 0.0


def pss_bytes(pid: int) -> int:
    """A process's proportional share of the memory that it maps (PSS), in bytes; 0 if unknown."""
    return _rollup(pid, "Pss")


def private_dirty_bytes() -> int:
    """The memory of this process that it has written to and that no other process maps; 0 if unknown."""
    return _rollup("self", "Private_Dirty")


def _rollup(pid: int | str, name: str) -> int:
    words = field(f"/proc/{pid}/smaps_rollup", name)
    return int(words[0]) * 1024 if words else 0


def resident_bytes(pid: int | str = "self") -> tuple[int, int]:
    """A process's resident memory, and how much of it belongs to files or shared memory; 0 if unknown."""
    fields = read_text(f"/proc/{pid}/statm").split()
    page = os.sysconf("SC_PAGE_SIZE")
    return (int(fields[1]) * page, int(fields[2]) * page) if len(fields) > 2 else (0, 0)
