"""Module variables of the user's program, taken along to workers that import those modules anew.

A forked worker sees `config.ROOT = args.root` and the random split that a module drew when it was imported; a worker
that imports the module itself sees what the file says, draws another split, and trains on other data without a word.
So the data in variables of the user's own modules go along.

NOTE [ Module state ]

It is a help and must never be a hindrance. Only modules that the dataset's code can reach are taken (`reach`). Each variable is
pickled by itself, and rebuilt by itself right after the worker has imported its module, if it ever does: a worker imports
nothing because of it, and a variable that cannot be pickled or rebuilt is left as the import makes it, and named in the log
at debug level.

Limits: a variable that holds something else (a client, a model) or a Python container of more than `MOST_ITEMS` items
is left as the import makes it. Where such a one is still unset in the worker, flags of that module are left alone too,
because `ready = True` beside a missing client would be a lie.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import pathlib
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unjam.loader.ship.reachable_modules import MAIN, Reached, installed_in_use, is_users_module
from unjam.system.import_hook import after_import
from unjam.system.logs import log

_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_FLAGS = (bool, int, float, str, type(None))
_SPACES = (argparse.Namespace, types.SimpleNamespace)
# what matters of these travels by itself
_GIANTS = ("torch", "numpy")
# looking through and sending more than this every epoch would cost more than it is worth
MOST_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class Packed:
    """One variable, pickled by itself; its buffers are `count` of the payload's, from number `first` on.

    `contents`: only the items of a kind of dict that cannot be pickled itself; they go into the one that the import made.
    """

    stream: bytes
    first: int
    count: int
    contents: bool = False

    def rebuild(self, buffers: Sequence[Any]) -> Any:
        """The value."""
        return pickle.loads(self.stream, buffers=buffers[self.first : self.first + self.count])


@dataclass(frozen=True, slots=True)
class ModuleState:
    """The data in one module's variables and in its classes' attributes, and the names of variables that are no data.

    A value is plain, or `Packed`.
    """

    plain: dict[str, Any]
    classes: dict[str, dict[str, Any]]
    opaque: frozenset[str]


# pickles one value; raises what its pickling raises
Pack = Callable[[Any], Packed]


def collect(reached: Reached, pack: Pack) -> dict[str, ModuleState]:
    """The state of the user's modules, and the flags of installed ones that they have in their variables."""
    found: dict[str, ModuleState] = {}
    for name, module in sorted(reached.own.items()):
        found[name] = _state(module, pack)
    for name, module in sorted(installed_in_use().items()):
        # who sets PIL.ImageFile.LOAD_TRUNCATED_IMAGES has the module in a variable of their own
        if name.partition(".")[0] not in _GIANTS:
            flags = {key: value for key, value in vars(module).items() if type(value) in _FLAGS and key[0] != "_"}
            found[name] = ModuleState(flags, {}, frozenset())
    return found


def expect(states: dict[str, ModuleState], buffers: Sequence[Any]) -> None:
    """Put state in place as soon as its module is imported, or now where it is."""
    for name, state in states.items():
        after_import(name, lambda module, state=state: _put(module, state, buffers))  # type: ignore[misc] # a lambda's default


def _put(module: types.ModuleType, state: ModuleState, buffers: Sequence[Any]) -> None:
    space = vars(module)
    bare = any(space.get(name) is None for name in state.opaque)
    for name, packed in state.plain.items():
        if bare and isinstance(packed, bool):
            continue
        with _left_behind(f"{module.__name__}.{name}"):
            if name in space and not _is_data(space[name]):
                continue
            value = _value(packed, buffers)
            if isinstance(packed, Packed) and packed.contents:
                _fill(space.get(name), value)
            elif name not in space or not _equal(space[name], value):
                space[name] = _filled(space.get(name), value)
    for name, attributes in state.classes.items():
        kind = space.get(name)
        for attribute, packed in attributes.items():
            with _left_behind(f"{module.__name__}.{name}.{attribute}"):
                value = _value(packed, buffers)
                if isinstance(kind, type) and not _equal(vars(kind).get(attribute), value):
                    setattr(kind, attribute, value)


def _value(packed: Any, buffers: Sequence[Any]) -> Any:
    return packed.rebuild(buffers) if isinstance(packed, Packed) else packed


@contextlib.contextmanager
def _left_behind(what: str) -> Any:
    try:
        yield
    except Exception:  # noqa: BLE001 - user code; a help, never a hindrance
        log.debug("the variable %s stays as its import makes it", what, exc_info=True)


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


def _fill(old: Any, items: dict[Any, Any]) -> None:
    if isinstance(old, dict) and dict(old) != items:
        old.clear()
        old.update(items)


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
        # proxies and lazy objects run code when they are looked at
        with _left_behind(f"{module.__name__}.{name}"):
            if _is_data(value):
                plain |= _packed(module.__name__, {name: value}, pack)
            elif not callable(value):
                opaque.add(name)
    return ModuleState(plain, {k: v for k, v in classes.items() if v}, frozenset(opaque))


def _packed(where: str, data: dict[str, Any], pack: Pack) -> dict[str, Any]:
    """The same names with what travels: plain values as they are, other data pickled; what is no data is left out."""
    found = {}
    for name, value in data.items():
        if type(value) in _SIMPLE:
            found[name] = value
            continue
        with _left_behind(f"{where}.{name}"):
            if _is_data(value):
                found[name] = _pack(value, pack)
    return found


def _pack(value: Any, pack: Pack) -> Packed:
    try:
        return pack(value)
    except Exception:
        # a dict with attribute access may answer pickle's questions with its items
        if not isinstance(value, dict):
            raise
        return dataclasses.replace(pack(dict(value)), contents=True)


def _is_data(value: Any) -> bool:
    return _count(value, MOST_ITEMS, 6) is not None


def _count(value: Any, room: int, depth: int) -> int | None:
    """How many items a piece of data has, or None if it is none, too many or too deep."""
    kind = type(value)
    if kind in _SIMPLE or kind in (torch.dtype, torch.device) or isinstance(value, pathlib.PurePath):
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
    plain_object = is_users_module(module) and hasattr(value, "__dict__") and "__reduce__" not in vars(kind)
    if not plain_object and not isinstance(value, dict):
        return None
    if kind.__module__ in MAIN or "<locals>" in kind.__qualname__:
        return None
    items = _count(dict(value), room, depth - 1) if isinstance(value, dict) else 0
    attributes = _count(dict(getattr(value, "__dict__", {})), room, depth - 1)
    return None if items is None or attributes is None or items + attributes > room else items + attributes
