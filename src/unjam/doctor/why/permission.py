"""Why this user may not read the memory of a process, and how to allow it."""

from __future__ import annotations

import os

from unjam.system.proc_files import field, read_text

_SYS_PTRACE = 19


def remedy(pid: int) -> str:
    """Return what the user can do, or "" if we have the capability already."""
    if _has(_SYS_PTRACE):
        return ""
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope").strip()
    owner, mine = _owner(pid), os.geteuid()
    ways = []
    if owner is not None and mine not in (owner, 0):
        ways.append(f"run this as the user that owns the process (uid {owner}) or as root")
    if scope in ("1", "2"):
        ways.append(
            f"`sudo sysctl kernel.yama.ptrace_scope=0` (it is {scope} now: only {'a parent process' if scope == '1' else 'root'} may read another), or `sudo unjam why`"
        )
    elif scope == "3":
        ways.append(
            "reboot with kernel.yama.ptrace_scope below 3 (it is 3 now, which forbids reading other processes until then)"
        )
    if _in_container() or not ways:
        ways.append(
            "start the container with `--cap-add SYS_PTRACE` (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]), "
            "or give this command that capability"
        )
    return "; or ".join(ways)


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _has(capability: int) -> bool:
    effective = field("/proc/self/status", "CapEff")
    return bool(effective and int(effective[0], 16) >> capability & 1)


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    return any(mark in read_text("/proc/1/cgroup") for mark in ("docker", "kubepods", "containerd", "lxc"))
