"""Old names of modules, for files that were pickled before the modules moved.

A pickle names the module of each class. `install` adds a finder that resolves the old names; it
costs nothing until something imports one of them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

# modules with classes that users pickle: loaders, shared containers, failure records
MOVED = {
    "unjam.drive.pacing": "unjam.loader.driver.auto_size",
    "unjam.drive.recorder": "unjam.loader.driver.recorder",
    "unjam.drive.times": "unjam.loader.driver.times",
    "unjam.engine.pace": "unjam.loader.engine.size_search",
    "unjam.evidence.incident": "unjam.loader.incident",
    "unjam.options": "unjam.loader.options",
    "unjam.pools.learnt": "unjam.loader.pool.worker_reports",
    "unjam.pools.starting": "unjam.loader.pool.start",
    "unjam.pools.templates": "unjam.loader.pool.templates",
    "unjam.sharing.arrays": "unjam.shared.arrays",
    "unjam.sharing.buffer": "unjam.shared.buffer",
    "unjam.sharing.columns": "unjam.shared.columns",
    "unjam.sharing.dicts": "unjam.shared.dicts",
    "unjam.sharing.handles": "unjam.shared.per_worker",
    "unjam.sharing.lists": "unjam.shared.lists",
    "unjam.sharing.locks": "unjam.shared.locks",
    "unjam.sharing.mapped": "unjam.shared.mapped",
    "unjam.sharing.walking": "unjam.shared.share",
    "unjam.worker.exceptions": "unjam.loader.worker.exceptions",
}
# classes that were renamed as well
RENAMED = {
    "Keeper": "TemplateCache",
    "Learnt": "WorkerReports",
    "Pace": "SizeSearch",
    "Pacer": "AutoSizer",
    "ShipCache": "PayloadCache",
    "Template": "TemplateProcess",
}
_PACKAGES = {name.rpartition(".")[0] for name in MOVED if name.count(".") > 1}


class _OldModule(ModuleType):
    """Looks up every attribute in the module under its new name."""

    def __getattr__(self, name: str) -> object:
        new = MOVED.get(self.__name__)
        if new is None or name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(new), RENAMED.get(name, name))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname in MOVED or fullname in _PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=fullname in _PACKAGES)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _OldModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Resolve the old names, after every other finder has had its chance."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
