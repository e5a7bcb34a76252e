"""Module variables that the user's program set after import, taken along to workers that import those modules anew.

A forked worker sees `config.ROOT = args.root`; a worker that imports `config` itself sees what the file says, and
trains on other data without a word. So the plain values of the user's own modules (not of installed packages) go along,
and are put in place right after the worker imports the module. A variable that holds something else (a client, a
model) is left as the import makes it; where such a one is still unset in the worker, flags of that module are left alone
too, because `ready = True` beside a missing client would be a lie.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import sysconfig
import types
from dataclasses import dataclass
from typing import Any

import torch

from unjam.worker.hygiene import after_import

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_SPACES = (argparse.Namespace, types.SimpleNamespace)
# a table larger than this is data, not a setting
MOST_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class ModuleSettings:
    """The plain variables of one module, and the names of those that are not plain."""

    plain: dict[str, Any]
    opaque: frozenset[str]


def collect() -> dict[str, ModuleSettings]:
    """The settings of every module of the user's that this process has imported."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _is_users(module):
            found[name] = _settings(module)
    return found


def apply(settings: dict[str, ModuleSettings]) -> None:
    """Put settings in place now, or as soon as their module is imported."""
    for name, found in settings.items():
        after_import(name, lambda module, found=found: _put(module, found))  # type: ignore[misc] # a lambda's default


def _put(module: types.ModuleType, settings: ModuleSettings) -> None:
    space = vars(module)
    bare = any(space.get(name) is None for name in settings.opaque)
    for name, value in settings.plain.items():
        if name in space and not _plain(space[name]):
            continue
        if bare and isinstance(value, bool):
            continue
        if name not in space or type(space[name]) is not type(value) or space[name] != value:
            space[name] = _filled(space.get(name), value)


def _filled(old: Any, value: Any) -> Any:
    """The old container with the new contents: others may have taken a reference to it at import."""
    if type(old) is not type(value):
        return value
    if isinstance(value, dict):
        old.clear()
        old.update(value)
        return old
    if isinstance(value, list):
        old[:] = value
        return old
    if isinstance(value, _SPACES):
        vars(old).clear()
        vars(old).update(vars(value))
        return old
    return value


def _settings(module: types.ModuleType) -> ModuleSettings:
    plain, opaque = {}, set()
    for name, value in list(vars(module).items()):
        if name.startswith("__") or isinstance(value, (types.ModuleType, type, types.FunctionType)):
            continue
        if _plain(value):
            plain[name] = value
        elif not callable(value):
            opaque.add(name)
    return ModuleSettings(plain, frozenset(opaque))


def _plain(value: Any, depth: int = 4) -> bool:
    kind = type(value)
    if kind in _SIMPLE or isinstance(value, pathlib.PurePath):
        return True
    if depth == 0:
        return False
    if kind in (list, tuple, set, frozenset):
        return len(value) <= MOST_ITEMS and all(_plain(item, depth - 1) for item in value)
    if kind is dict:
        return len(value) <= MOST_ITEMS and all(_plain(k, 1) and _plain(v, depth - 1) for k, v in value.items())
    if kind in _SPACES:
        return _plain(vars(value), depth - 1)
    return False


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or an installed package."""
    return path.startswith(_library_folders()) or "site-packages" in path or "dist-packages" in path


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths)


def _is_users(module: Any) -> bool:
    path = getattr(module, "__file__", None)
    if not isinstance(module, types.ModuleType) or not isinstance(path, str):
        return False
    name = module.__name__
    return name != "unjam" and not name.startswith("unjam.") and not is_installed(path)
