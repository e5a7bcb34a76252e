"""Facts about this machine that matter for data loading, for bug reports."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import platform
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from unjam.system import limits
from unjam.system.memory_limits import available_memory
from unjam.system.printable import printable_line
from unjam.system.proc_files import read_text
from unjam.units import size
from unjam.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
# libraries that are commonly used to load data
_LIBRARIES = (
    "torch", "numpy", "cloudpickle", "threadpoolctl", "py-spy", "torchvision", "opencv-python", "opencv-python-headless",
    "pillow", "h5py", "lmdb", "pyarrow", "datasets", "lightning", "accelerate", "transformers",
)  # fmt: skip
_VARIABLES = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "OPENCV_",
    "NUMEXPR_",
    "VECLIB_",
    "UNJAM",
    "PYTHONHASHSEED",
    "CUDA_VISIBLE_DEVICES",
)


def gather() -> dict[str, Any]:
    """Return the facts about this machine and this interpreter."""
    free, total = limits.shared_memory()
    most_files, used_files = limits.descriptors()
    return {
        "schema": SCHEMA,
        "unjam": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.platform(),
        "container": _container(),
        "shared_memory": {"total": total, "free": free},
        "open_files": {"limit": most_files, "used": used_files},
        "memory_available": available_memory(),
        "processors": {
            "machine": os.cpu_count(),
            "usable": limits.processors(),
            "for_this_rank": limits.own_processors(),
        },
        "ranks_on_this_machine": limits.local_ranks(),
        "start_method": multiprocessing.get_start_method(allow_none=True)
        or f"{multiprocessing.get_all_start_methods()[0]} (default)",
        "tracing_of_processes": _ptrace(),
        "temporary_folder": tempfile.gettempdir(),
        "libraries": _versions(),
        "thread_pools": _thread_pools(),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_VARIABLES)},
    }


def as_json(found: dict[str, Any]) -> str:
    """Return the documented JSON object."""
    return json.dumps(found, indent=2)


def show(found: dict[str, Any], console: Console) -> None:
    """Print one line for each fact."""
    for name, value in found.items():
        if name != "schema":
            console.print(f"{name.replace('_', ' '):22} {printable_line(_words(name, value))}", soft_wrap=True)


def _words(name: str, value: Any) -> str:
    if name == "shared_memory":
        return "unknown" if value["total"] is None else f"{size(value['free'])} free of {size(value['total'])}"
    if name == "open_files":
        return f"{value['used']} of {value['limit']}"
    if name == "memory_available":
        return "unknown" if value is None else size(value)
    if name == "processors":
        return f"{value['usable']} usable of {value['machine']}, {value['for_this_rank']} for this rank"
    if isinstance(value, dict):
        return ", ".join(f"{key} {one}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return str(value)


def _versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _thread_pools() -> list[str]:
    """Return the compute threads that a worker would have without a limit."""
    try:
        import threadpoolctl  # noqa: PLC0415 - a command imports what it needs
        import torch  # noqa: PLC0415 - as above
    except ImportError as error:
        return [f"{error.name} cannot be imported"]
    pools = [f"{one['user_api']} {one['num_threads']} ({one['prefix']})" for one in threadpoolctl.threadpool_info()]
    accelerator = "cuda" if torch.cuda.is_available() else "no accelerator"
    return [f"torch {torch.get_num_threads()}", *pools, accelerator]


def _container() -> str:
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    return os.environ.get("container", "") or "none found"  # noqa: SIM112 - systemd's name


def _ptrace() -> str:
    """Return whether `unjam why` may read the memory of another process."""
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope").strip() or "not restricted by yama"
    return {"0": "allowed", "1": "children only, or as root", "2": "root only", "3": "forbidden"}.get(scope, scope)
