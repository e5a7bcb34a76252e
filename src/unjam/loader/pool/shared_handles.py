"""Finds handles in a dataset that only one worker can use safely: connections and file positions.

If workers share a connection, the answer to one worker's request may reach another. If they share an
open file, each read moves the position for all of them. The samples are then wrong although nothing
fails, so we warn before the first batch.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch.utils.data import Dataset

from unjam.errors import type_name
from unjam.loader.ship.reachable_modules import file_of, nested_codes
from unjam.loader.worker.spec import WorkerInput
from unjam.shared.per_worker import PerWorker
from unjam.system.file_owner import is_installed, is_ours
from unjam.system.object_graph import Held, attributes, enclosed, items, walk, wrapped

MAX_DEPTH, MAX_OBJECTS = 12, 1000
_MAX_ITEMS = 100
_MADE_TO_SHARE = ("multiprocessing", "torch")  # packages whose objects several processes may use
# types that hold no handles; most of a dataset consists of them
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# the interpreter's own types: generators, coroutines, frames, ...
_INTERPRETER_TYPES = frozenset(value for value in vars(types).values() if isinstance(value, type))
_NATIVE_METHODS = ("method_descriptor", "cython_function_or_method", "builtin_function_or_method")
_CLOSING_METHODS = ("close", "_close", "release", "abort")
_RISKS = {
    "connection": "all workers share this connection, so a reply meant for one worker may reach another, and samples may be wrong",
    "file": "all workers share this file's position, so each read moves it for the others, and samples may be wrong",
    "native": "all workers share it: if it is a connection or has a position in a file, samples may be wrong",
}


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """A handle that workers would share.

    kind: "connection", "file", or "native" for an object of a native library that has a close method.
    path, type_name: the object that the program created, as the user would write it; the handle may be inside it.
    """

    path: str
    type_name: str
    kind: str

    @property
    def risk(self) -> str:
        """What can go wrong, as the end of a sentence."""
        return _RISKS[self.kind]

    @property
    def cure(self) -> str:
        """How to fix it."""
        return (
            f"help: open it in each worker: replace {self.path} with unjam.per_worker(function, *arguments); "
            "or open it on first use in __getitem__"
        )


def shared_handles(worker_input: WorkerInput, pickled: Collection[int] | None = None) -> list[SharedHandle]:
    """Return the handles in the worker input that workers would share, each once, with its shortest path.

    pickled: for workers that are not forked, the ids of the connections that they get; they share nothing else.
    """
    found: dict[str, SharedHandle] = {}
    descriptors: set[int] = set()
    queues: set[int] = set()
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        root = Held(name, getattr(worker_input, name))
        for part, fresh in walk(root, _parts, deepest=MAX_DEPTH, most=MAX_OBJECTS):
            value, kind = part.value, type(part.value)
            if not fresh:
                continue
            if _package(kind) in _MADE_TO_SHARE and not issubclass(kind, (Connection, socket.socket)):
                queues |= {id(inner.value) for inner in attributes(value)}
                continue
            if id(value) in queues or (pickled is not None and id(value) not in pickled):
                continue
            descriptor = _descriptor(value)
            if descriptor is None:
                what = "connection" if _is_two_way(value) else "native" if _is_native_handle(value) else ""
            else:
                what = "" if descriptor in descriptors else _kind_of(descriptor, value)
                descriptors.add(descriptor)
            path, made = part.name or (part.path, kind)
            if what and (path not in found or found[path].kind == "native"):
                found[path] = SharedHandle(path, type_name(made), what)
    return list(found.values())


def _parts(above: Held) -> Iterator[Held]:
    """Yield the parts of an object. `name`: path and type of the outermost library object that contains them."""
    value = above.value
    if issubclass(type(value), (*_PLAIN, io.IOBase, PerWorker)):  # not isinstance: `__class__` of some objects raises
        return
    made = above.name
    if not issubclass(type(value), _CONTAINERS) and type(value) not in (types.FunctionType, types.MethodType):
        made = (made or (above.path, type(value))) if _is_of_a_library(type(value)) else None
    for part in (*items(value, _MAX_ITEMS), *attributes(value), *wrapped(value)):
        if not issubclass(type(part.value), _PLAIN):
            yield part._replace(path=above.path + part.path, name=made)
    if type(value) is types.FunctionType:
        for part in (*enclosed(value), *_defaults(value)):
            yield part._replace(path=f"{part.path} of {above.path}", name=None)
        yield from _globals(value)
    for kind in type(value).__mro__ if made is None else ():
        if not _is_of_a_library(kind):
            for name, part in list(vars(kind).items()):
                if type(part) is types.FunctionType:
                    yield from _globals(part)
                elif not issubclass(type(part), (*_PLAIN, property, staticmethod, classmethod)):
                    yield Held(f"{above.path}.{name}", part)


def _defaults(function: types.FunctionType) -> Iterator[Held]:
    for place, value in enumerate(function.__defaults__ or ()):
        yield Held(f"default argument {place}", value)


def _globals(function: types.FunctionType) -> Iterator[Held]:
    """Yield the module variables that a function of the program uses."""
    for code in nested_codes(function.__code__):
        for name in code.co_names:
            value = function.__globals__.get(name)
            if not issubclass(type(value), _PLAIN) and not callable(value):
                yield Held(f"global {name}", value)


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _is_of_a_library(kind: type) -> bool:
    """Return whether a class belongs to a library. Datasets do not count: they hold what the program gave them."""
    if issubclass(kind, Dataset):
        return False
    file = file_of(sys.modules.get(kind.__module__))
    return kind.__module__ != "__main__" and (not file or is_installed(file) or is_ours(file))


def _descriptor(value: Any) -> int | None:
    """Return the file descriptor of an object, without running the program's own code."""
    method = getattr(type(value), "fileno", None)
    if method is None or (
        isinstance(method, types.FunctionType) and not issubclass(type(value), (io.IOBase, Connection))
    ):
        return None
    try:
        fd = value.fileno()
    except Exception:  # noqa: BLE001 - it is closed, or has none
        return None
    return fd if type(fd) is int and fd > 2 else None


def _is_two_way(value: Any) -> bool:
    """Return whether a file object reads and writes two streams, e.g. of a socket; it has no `fileno`."""
    if issubclass(type(value), io.TextIOWrapper):
        value = value.buffer
    return issubclass(type(value), io.BufferedRWPair) and not value.closed


def _kind_of(descriptor: int, value: Any) -> str:
    with contextlib.suppress(OSError):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
            return "connection"
        if stat.S_ISREG(mode) and _reads(value):
            return "file"
    return ""


def _reads(file: Any) -> bool:
    """Return whether a file is open for reading and reads move its position."""
    if not issubclass(type(file), io.IOBase):
        return False
    with contextlib.suppress(Exception):
        return bool(file.readable())
    return False


def _is_native_handle(value: Any) -> bool:
    """Return whether an object is of a native type with a close method, and is neither memory nor a lock."""
    kind = type(value)
    closes = any(hasattr(kind, name) for name in _CLOSING_METHODS)
    if not closes or hasattr(kind, "acquire") or callable(getattr(kind, "fileno", None)) or kind in _INTERPRETER_TYPES:
        return False
    try:
        memoryview(value)
    except TypeError:
        return any(map(_is_native, kind.__mro__)) and not _is_closed(value)
    except Exception:  # noqa: BLE001 - released memory
        return False
    return False


def _is_closed(value: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(getattr(value, "closed", False)) or not getattr(value, "valid", True)
    return False


def _is_native(kind: type) -> bool:
    """Return whether a class has methods, all of them native."""
    own = vars(kind)
    if kind is object or "__dict__" in own or "__slots__" in own:
        return False
    kinds = {type(value) for value in own.values()}
    return types.FunctionType not in kinds and any(one.__name__ in _NATIVE_METHODS for one in kinds)
