"""What keeps one worker from disturbing the others: compute threads.

NOTE [ One compute thread ]

N workers that each start a pool of as many threads as the machine has cores are slower than N workers with one thread
each, and a pool that was started before a fork is dead after it: calling into it may hang for ever. So a worker caps
every pool it can reach: torch's by API, BLAS and OpenMP through threadpoolctl, OpenCV by API as soon as it is imported,
and libraries not loaded yet by the variables that they read when they are loaded. Only variables that a library really
reads are listed; OpenCV reads no variable with OPENMP in its name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

# read when the library is loaded or makes its first pool
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",  # libgomp, libomp, libiomp; Arrow's CPU pool
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "RAYON_NUM_THREADS",  # tokenizers and other Rust libraries
    "POLARS_MAX_THREADS",
    "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that cap pools of libraries loaded later."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def cap_threads(threads: int, *, loaded_elsewhere: bool) -> None:
    """Cap every pool in this process. `loaded_elsewhere`: libraries were loaded before the variables were set."""
    torch.set_num_threads(threads)
    os.environ.update(thread_environment(threads))
    if loaded_elsewhere:
        import threadpoolctl  # noqa: PLC0415 - milliseconds, and only needed after a fork of the parent

        threadpoolctl.threadpool_limits(threads)
    after_import("cv2", lambda cv2: cv2.setNumThreads(threads))


def after_import(name: str, action: Callable[[ModuleType], Any]) -> None:
    """Call `action` with module `name` now if it is imported, otherwise right after it is."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    for finder in sys.meta_path:
        if isinstance(finder, _AfterImport):
            finder.actions.setdefault(name, []).append(action)
            return
    sys.meta_path.insert(0, _AfterImport({name: [action]}))


class _AfterImport(MetaPathFinder):
    """Finds nothing itself; it wraps the loader that the other finders found."""

    def __init__(self, actions: dict[str, list[Callable[[ModuleType], Any]]]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        actions = self.actions.pop(name, None)
        if actions is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, actions)
                return spec
        return None


class _Telling(Loader):
    """A loader that calls actions after the module's code has run, and is otherwise the loader it wraps."""

    def __init__(self, loader: Any, actions: list[Callable[[ModuleType], Any]]) -> None:
        self._loader = loader
        self._actions = actions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for action in self._actions:
            action(sys.modules.get(module.__name__, module))
