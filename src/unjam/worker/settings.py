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
import contextlib
import enum
import functools
import pathlib
import sys
import sysconfig
import types
from dataclasses import dataclass
from typing import Any

import torch

from unjam.worker.imports import after_import

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_FLAGS = (bool, int, float, str, type(None))
_SPACES = (argparse.Namespace, types.SimpleNamespace)
# looking through and sending more than this every epoch would cost more than it is worth
MOST_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class ModuleSettings:
    """The data in one module's variables and in its classes' attributes, and the names of variables that are no data."""

    plain: dict[str, Any]
    classes: dict[str, dict[str, Any]]
    opaque: frozenset[str]


def collect() -> dict[str, ModuleSettings]:
    """The settings of the user's modules, and the flags of installed ones that those refer to."""
    found: dict[str, ModuleSettings] = {}
    referred: dict[str, types.ModuleType] = {}
    for name, module in list(sys.modules.items()):
        main = name in ("__main__", "__mp_main__")
        if not main and not _is_users(module):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, types.ModuleType):
                referred.update(_with_submodules(value))
        if not main:
            with contextlib.suppress(Exception):  # proxies and lazy objects run code when they are looked at
                found[name] = _settings(module)
    for name, module in referred.items():
        # who sets PIL.ImageFile.LOAD_TRUNCATED_IMAGES has the module in a variable of their own
        if name not in found and _is_installed_package(module):
            flags = {key: value for key, value in vars(module).items() if type(value) in _FLAGS and key[0] != "_"}
            found[name] = ModuleSettings(flags, {}, frozenset())
    return found


def scalars(found: dict[str, ModuleSettings]) -> dict[str, ModuleSettings]:
    """The same without anything that could fail to be sent."""
    return {
        name: ModuleSettings(
            {key: value for key, value in settings.plain.items() if type(value) in _SIMPLE}, {}, settings.opaque
        )
        for name, settings in found.items()
    }


def _with_submodules(module: types.ModuleType) -> dict[str, types.ModuleType]:
    prefix = module.__name__ + "."
    inner = [
        # by type and not by isinstance, which asks the object itself: some warn when they are asked anything
        m
        for m in list(vars(module).values())
        if issubclass(type(m), types.ModuleType) and m.__name__.startswith(prefix)
    ]
    return {str(m.__name__): m for m in (module, *inner)}


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
    for name, attributes in settings.classes.items():
        kind = space.get(name)
        for attribute, value in attributes.items():
            if isinstance(kind, type) and not _equal(vars(kind).get(attribute), value):
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(kind, attribute, value)


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
    plain, classes, opaque = {}, {}, set()
    for name, value in list(vars(module).items()):
        if name.startswith("__") or isinstance(value, (types.ModuleType, types.FunctionType)):
            continue
        if isinstance(value, type):
            if value.__module__ == module.__name__ and not issubclass(value, enum.Enum):
                classes[name] = {k: v for k, v in vars(value).items() if not k.startswith("__") and _is_data(v)}
        elif _is_data(value):
            plain[name] = value
        elif not callable(value):
            opaque.add(name)
    return ModuleSettings(plain, {k: v for k, v in classes.items() if v}, frozenset(opaque))


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
    if depth == 0:
        return None
    if kind not in (list, tuple, set, frozenset, dict):
        return _count_object(value, room, depth)
    if len(value) > room:
        return None
    total = 0
    for item in value:
        for part in (item, value[item]) if kind is dict else (item,):
            size = _count(part, room - total, depth - 1)
            total += size or 0
            if size is None or total > room:
                return None
    return total


def _count_object(value: Any, room: int, depth: int) -> int | None:
    """A configuration object: data in its attributes and, for a dict with attribute access and the like, in its items."""
    kind = type(value)
    module = sys.modules.get(kind.__module__)
    if isinstance(value, (type, types.ModuleType, torch.nn.Module)) or callable(value) or hasattr(kind, "__slots__"):
        return None
    plain_object = _is_users(module) and hasattr(value, "__dict__") and "__reduce__" not in vars(kind)
    if not plain_object and not isinstance(value, dict):
        return None
    if kind.__module__ in ("__main__", "__mp_main__") or "<locals>" in kind.__qualname__:
        return None
    items = _count(dict(value), room, depth - 1) if isinstance(value, dict) else 0
    attributes = _count(dict(getattr(value, "__dict__", {})), room, depth - 1)
    return None if items is None or attributes is None or items + attributes > room else items + attributes


def is_installed(path: str) -> bool:
    """Whether a file belongs to Python or an installed package."""
    return path.startswith(_library_folders()) or "site-packages" in path or "dist-packages" in path


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths)


def _is_installed_package(module: types.ModuleType) -> bool:
    path = vars(module).get("__file__")  # not getattr: a module's __getattr__ may do anything
    top = module.__name__.partition(".")[0]
    giants = ("torch", "numpy", "unjam")  # what matters of torch and numpy travels by itself
    return bool(path) and top not in giants and top not in sys.stdlib_module_names and is_installed(str(path))


def _is_users(module: Any) -> bool:
    if not isinstance(module, types.ModuleType):
        return False
    path = vars(module).get("__file__")
    if not isinstance(path, str):
        return False
    name = module.__name__
    if name in ("__main__", "__mp_main__"):
        return False  # travels by value, with what uses it
    return name != "unjam" and not name.startswith("unjam.") and not is_installed(path)
