"""Environment variables about threads that no code in this process reads."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Mapping

from unjam.system.file_owner import is_installed, is_ours
from unjam.system.proc_files import memory_maps

# libraries read these when they are loaded; setting one makes sense even without the library
KNOWN = {
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS", "OPENCV_FOR_THREADS_NUM", "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "GOTO_NUM_THREADS", "OMP_THREAD_LIMIT",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "MKL_DOMAIN_NUM_THREADS", "ARROW_IO_THREADS",
}  # fmt: skip


def unread_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with THREADS in their name that no loaded library or module mentions."""
    suspects = {name: value for name, value in variables.items() if "THREADS" in name and name not in KNOWN}
    for files in (_libraries, _modules):
        for path in files() if suspects else ():
            for name in _occurring(path, suspects):
                del suspects[name]
    return suspects


def _occurring(path: str, names: Iterable[str]) -> list[str]:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return [name for name in names if data.find(name.encode()) >= 0]
    except (OSError, ValueError):
        return []


def _libraries() -> list[str]:
    return sorted({one.path for one in memory_maps() if one.path.startswith("/") and ".so" in one.path})


def _modules() -> list[str]:
    """The sources of installed modules. User code is left out: it mentions the variables that it sets."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [
        path
        for path in paths
        if isinstance(path, str) and path.endswith(".py") and not is_ours(path) and is_installed(path)
    ]


def set_by_program(before: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that were set or changed since `before`."""
    return {name: value for name, value in os.environ.items() if before.get(name) != value}
