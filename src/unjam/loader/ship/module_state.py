"""Sends module variables of the user's program to workers that import those modules again.

A forked worker sees `config.ROOT = args.root`, and the random split that a module drew on import. A
worker that imports the module itself sees the values in the file and draws another split: it would
silently train on other data. So we send the data in variables of the user's own modules.

NOTE [ Module state ]

Module state is optional and must never cause a failure. We send only modules that the dataset's
code can reach (`reach`). Each variable is pickled separately. The worker rebuilds it right after
it has imported the module, if it ever does; we import nothing for it. A variable that cannot be
pickled or rebuilt keeps the value that the import gives it, and the debug log names it.

Limits: a variable that holds something else (a client, a model), or a Python container of more
than `MAX_ITEMS` items, keeps the value that the import gives it. If such a variable is missing or
None in the worker, we do not set the module's boolean flags either: `ready = True` without the
client would be wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import functools
import pathlib
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unjam.loader.ship.reachable_modules import MAIN, Reached, installed_in_use, is_users_module
from unjam.system.import_hook import after_import
from unjam.system.logs import log

_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_FLAGS = (bool, int, float, str, type(None))
_SPACES = (argparse.Namespace, types.SimpleNamespace)
# process_state sends the flags of these that matter
_LARGE_PACKAGES = ("torch", "numpy")
# Larger containers aren't worth checking and sending every epoch.
MAX_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class PackedVariable:
    """One pickled variable; its buffers are `count` of the payload's buffers, from number `first`.

    `contents`: only the items of a dict subclass that cannot be pickled; they replace the items of
    the dict that the import made.
    """

    stream: bytes
    first: int
    count: int
    contents: bool = False

    def rebuild(self, buffers: Sequence[Any]) -> Any:
        """Return the value."""
        return pickle.loads(self.stream, buffers=buffers[self.first : self.first + self.count])


@dataclass(frozen=True, slots=True)
class ModuleState:
    """The data in one module's variables and class attributes.

    A value is plain or a `PackedVariable`. `opaque`: names of variables that hold no data.
    """

    plain: dict[str, Any]
    classes: dict[str, dict[str, Any]]
    opaque: frozenset[str]


# Pickles one value; may raise what its pickling raises.
Pack = Callable[[Any], PackedVariable]


def collect(reached: Reached, pack: Pack) -> dict[str, ModuleState]:
    """Return the state of the user's modules, and the flags of installed modules that they use."""
    found: dict[str, ModuleState] = {}
    for name, module in sorted(reached.own.items()):
        found[name] = _state(module, pack)
    for name, module in sorted(installed_in_use().items()):
        # Code that sets PIL.ImageFile.LOAD_TRUNCATED_IMAGES has the module in a variable.
        if name.partition(".")[0] not in _LARGE_PACKAGES:
            flags = {key: value for key, value in vars(module).items() if type(value) in _FLAGS and key[0] != "_"}
            found[name] = ModuleState(flags, {}, frozenset())
    return found


def expect(states: dict[str, ModuleState], buffers: Sequence[Any]) -> None:
    """Apply the state of each module now if it is imported, otherwise right after its import."""
    for name, state in states.items():
        after_import(name, functools.partial(_apply, state, buffers))


def _apply(state: ModuleState, buffers: Sequence[Any], module: types.ModuleType) -> None:
    space = vars(module)
    incomplete = any(space.get(name) is None for name in state.opaque)
    for name, packed in state.plain.items():
        if incomplete and isinstance(packed, bool):
            continue
        with _log_failure(f"{module.__name__}.{name}"):
            if name in space and not _is_data(space[name]):
                continue
            value = _value(packed, buffers)
            if isinstance(packed, PackedVariable) and packed.contents:
                _fill(space.get(name), value)
            elif name not in space or not _equal(space[name], value):
                space[name] = _filled(space.get(name), value)
    for name, attributes in state.classes.items():
        kind = space.get(name)
        for attribute, packed in attributes.items():
            with _log_failure(f"{module.__name__}.{name}.{attribute}"):
                value = _value(packed, buffers)
                if isinstance(kind, type) and not _equal(vars(kind).get(attribute), value):
                    setattr(kind, attribute, value)


def _value(packed: Any, buffers: Sequence[Any]) -> Any:
    return packed.rebuild(buffers) if isinstance(packed, PackedVariable) else packed


@contextlib.contextmanager
def _log_failure(what: str) -> Any:
    try:
        yield
    except Exception:  # noqa: BLE001 - user code; module state is optional
        log.debug("the variable %s keeps the value that its import gives it", what, exc_info=True)


def _equal(old: Any, value: Any) -> bool:
    if type(old) is not type(value):
        return False
    if isinstance(value, torch.Tensor):
        return old.dtype == value.dtype and torch.equal(old, value)
    if isinstance(value, np.ndarray):
        return bool(old.dtype == value.dtype and old.shape == value.shape and (old == value).all())
    try:
        return bool(old == value)
    except (ValueError, RuntimeError):
        return False  # e.g. a container of arrays: treat it as different


def _fill(old: Any, items: dict[Any, Any]) -> None:
    if isinstance(old, dict) and dict(old) != items:
        old.clear()
        old.update(items)


def _filled(old: Any, value: Any) -> Any:
    """Put the new content into the old container, because other modules may hold a reference to it."""
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


def _state(module: types.ModuleType, pack: Pack) -> ModuleState:
    plain: dict[str, Any] = {}
    classes: dict[str, dict[str, Any]] = {}
    opaque = set()
    for name, value in list(vars(module).items()):
        if name.startswith("__") or issubclass(type(value), (types.ModuleType, types.FunctionType)):
            continue
        if issubclass(type(value), type):
            if value.__module__ == module.__name__ and not issubclass(value, enum.Enum):
                data = {k: v for k, v in vars(value).items() if not k.startswith("__")}
                classes[name] = _packed(f"{module.__name__}.{name}", data, pack)
            continue
        # Proxies and lazy objects run code when we inspect them.
        with _log_failure(f"{module.__name__}.{name}"):
            if _is_data(value):
                plain[name] = value if type(value) in _SIMPLE else _pack(value, pack)
            elif not callable(value):
                opaque.add(name)
    return ModuleState(plain, {k: v for k, v in classes.items() if v}, frozenset(opaque))


def _packed(where: str, data: dict[str, Any], pack: Pack) -> dict[str, Any]:
    """Return the values that are data: plain ones unchanged, others pickled."""
    found = {}
    for name, value in data.items():
        if type(value) in _SIMPLE:
            found[name] = value
            continue
        with _log_failure(f"{where}.{name}"):
            if _is_data(value):
                found[name] = _pack(value, pack)
    return found


def _pack(value: Any, pack: Pack) -> PackedVariable:
    try:
        return pack(value)
    except Exception:
        # A dict with attribute access may return its items for pickle's lookups.
        if not isinstance(value, dict):
            raise
        return dataclasses.replace(pack(dict(value)), contents=True)


def _is_data(value: Any) -> bool:
    return _count(value, MAX_ITEMS, 6) is not None


def _count(value: Any, limit: int, depth: int) -> int | None:
    """Count the items of a value; None if it is not data, or too large or too deep."""
    kind = type(value)
    if kind in _SIMPLE or kind in (torch.dtype, torch.device) or isinstance(value, pathlib.PurePath):
        return 1
    if kind is torch.Tensor:
        plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        return 1 if plain and not value.is_shared() else None
    if kind is np.ndarray:
        return 1 if not value.dtype.hasobject else None
    if kind in _SPACES:
        value, kind = vars(value), dict
    if depth == 0:
        return None
    if kind not in (list, tuple, set, frozenset, dict):
        return _count_object(value, limit, depth)
    if len(value) > limit:
        return None
    total = 0
    for item in value:
        for part in (item, value[item]) if kind is dict else (item,):
            size = _count(part, limit - total, depth - 1)
            total += size or 0
            if size is None or total > limit:
                return None
    return total


def _count_object(value: Any, limit: int, depth: int) -> int | None:
    """Count a configuration object: its attributes and, if it is a dict subclass, its items."""
    kind = type(value)
    module = sys.modules.get(kind.__module__)
    if isinstance(value, (type, types.ModuleType, torch.nn.Module)) or callable(value) or hasattr(kind, "__slots__"):
        return None
    plain_object = is_users_module(module) and hasattr(value, "__dict__") and "__reduce__" not in vars(kind)
    if not plain_object and not isinstance(value, dict):
        return None
    if kind.__module__ in MAIN or "<locals>" in kind.__qualname__:
        return None
    items = _count(dict(value), limit, depth - 1) if isinstance(value, dict) else 0
    attributes = _count(dict(getattr(value, "__dict__", {})), limit, depth - 1)  # a defaultdict has none
    return None if items is None or attributes is None or items + attributes > limit else items + attributes
