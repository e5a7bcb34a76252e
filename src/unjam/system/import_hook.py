"""Runs an action as soon as the program imports a module, without importing it ourselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, action: Callable[[ModuleType], Any]) -> None:
    """Call `action` with module `name`: now if it is imported, otherwise after its import."""
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
    """Finds no modules itself; wraps the loader that another finder found."""

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
                    spec.loader = _NotifyingLoader(spec.loader, actions)
                return spec
        return None


class _NotifyingLoader(Loader):
    """Calls actions after the module's code has run; otherwise acts as the loader that it wraps."""

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
