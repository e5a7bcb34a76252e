"""Module variables of the user's program, taken along to workers that import those modules anew.

A forked worker sees `config.ROOT = args.root` and the random split that a module drew when it was imported; a worker
that imports the module itself sees what the file says, draws another split, and trains on other data without a word.
So the data in variables of the user's own modules (not of installed packages) go along, and are put in place right
after the worker imports the module, where they differ.

Limits: a variable that holds something else (a client, a model) or a Python container of more than `MOST_ITEMS` items
is left as the import makes it. Where such a one is still unset in the worker, flags of that module are left alone too,
because `ready = True` beside a missing client would be a lie.
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
# looking through and sending more than this every epoch would cost more than it is worth
MOST_ITEMS = 100_000


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


class Carrier:
    """Settings as the first thing in a payload: when it is unpickled they are ready, before anything is imported."""

    def __init__(self, settings: dict[str, ModuleSettings]) -> None:
        self._settings = settings

    def __reduce__(self) -> Any:
        return apply, (self._settings,)


def apply(settings: dict[str, ModuleSettings]) -> None:
    """Put settings in place now, or as soon as their module is imported."""
    for name, found in settings.items():
        after_import(name, lambda module, found=found: _put(module, found))  # type: ignore[misc] # a lambda's default


def _put(module: types.ModuleType, settings: ModuleSettings) -> None:
    space = vars(module)
    bare = any(space.get(name) is None for name in settings.opaque)
    for name, value in settings.plain.items():
        if name in space and not _is_data(space[name]):
            continue
        if bare and isinstance(value, bool):
            continue
        if name not in space or not _equal(space[name], value):
            space[name] = _filled(space.get(name), value)


def _equal(old: Any, value: Any) -> bool:
    if type(old) is not type(value):
        return False
    if isinstance(value, torch.Tensor):
        return old.dtype == value.dtype and torch.equal(old, value)
    if type(value).__module__ == "numpy":
        return bool(old.dtype == value.dtype and old.shape == value.shape and (old == value).all())
    try:
        return bool(old == value)
    except (ValueError, RuntimeError):
        return False  # a container of arrays: put it in place


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
        if _is_data(value):
            plain[name] = value
        elif not callable(value):
            opaque.add(name)
    return ModuleSettings(plain, frozenset(opaque))


def _is_data(value: Any) -> bool:
    return _count(value, MOST_ITEMS, 6) is not None


def _count(value: Any, room: int, depth: int) -> int | None:
    """How many items a piece of data has, or None if it is none, too many or too deep."""
    kind = type(value)
    if kind in _SIMPLE or isinstance(value, pathlib.PurePath):
        return 1
    if kind is torch.Tensor:
        plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        return 1 if plain and not value.is_shared() else None
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return 1 if not value.dtype.hasobject else None
    if kind in _SPACES:
        value, kind = vars(value), dict
    if depth == 0 or kind not in (list, tuple, set, frozenset, dict) or len(value) > room:
        return None
    total = 0
    for item in value:
        for part in (item, value[item]) if kind is dict else (item,):
            size = _count(part, room - total, depth - 1)
            total += size or 0
            if size is None or total > room:
                return None
    return total


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
