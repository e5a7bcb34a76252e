"""Finds what workers would share although it can serve only one of them: a connection, or a position in a file.

A request that one worker sends may be answered to another, and a worker that reads moves the position
for all. The samples are then wrong, and nothing fails. So it is said before the first batch.
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

from unjam.loader.worker.spec import WorkerInput
from unjam.shared.per_worker import PerWorker
from unjam.system.file_owner import is_installed, is_ours
from unjam.system.object_graph import Held, attributes, enclosed, items, walk, wrapped

DEEPEST, MOST = 12, 1000
_MOST_ITEMS = 100
_MANY_PROCESSES = ("multiprocessing", "torch")  # packages whose objects are made for several processes
# kinds of objects that have no handle below them; most of a dataset is made of them
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# generators and the like
_PYTHONS = frozenset(value for value in vars(types).values() if isinstance(value, type))
_NATIVE_METHODS = ("method_descriptor", "cython_function_or_method", "builtin_function_or_method")
_ENDS = ("close", "_close", "release", "abort")
_RISKS = {
    "connection": "all workers share this one connection, so the answer to one may reach another, and samples may be wrong",
    "file": "all workers share the position in this one file, so each moves it for the others, and samples may be wrong",
    "native": "all workers share it: if it is a connection or has a position in a file, samples may be wrong",
}


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """One of them. kind: "connection", "file", or "native" for an object of a native library that has to be closed.

    path, type_name: what the program made, as the user would write it; the handle may lie inside.
    """

    path: str
    type_name: str
    kind: str

    @property
    def risk(self) -> str:
        """What goes wrong, as the end of a sentence."""
        return _RISKS[self.kind]

    @property
    def cure(self) -> str:
        """What to do."""
        return (
            f"help: make it in each worker: unjam.per_worker(what opens it, its arguments) in place of {self.path}; or open "
            "it on first use in __getitem__"
        )


def shared_handles(worker_input: WorkerInput, pickled: Collection[int] | None = None) -> list[SharedHandle]:
    """What workers would share of the worker input; each once, under its shortest path.

    pickled: by id, the connections that are sent to workers which are not forked; these share nothing else.
    """
    found: dict[str, SharedHandle] = {}
    descriptors: set[int] = set()
    queues: set[int] = set()
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        root = Held(name, getattr(worker_input, name))
        for part, fresh in walk(root, _parts, deepest=DEEPEST, most=MOST):
            value, kind = part.value, type(part.value)
            if not fresh:
                continue
            if _home(kind) in _MANY_PROCESSES and not issubclass(kind, (Connection, socket.socket)):
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
            path, made = part.name or (part.step, kind)
            if what and (path not in found or found[path].kind == "native"):
                found[path] = SharedHandle(path, _type_name(made), what)
    return list(found.values())


def _parts(above: Held) -> Iterator[Held]:
    """The parts of one object. `name` is the outermost object of a library around them: its path and its type."""
    value = above.value
    if issubclass(type(value), (*_PLAIN, io.IOBase, PerWorker)):  # an object may refuse to say its class
        return
    made = above.name
    if not issubclass(type(value), _CONTAINERS) and type(value) not in (types.FunctionType, types.MethodType):
        made = (made or (above.step, type(value))) if _is_of_a_library(type(value)) else None
    for part in (*items(value, _MOST_ITEMS), *attributes(value), *wrapped(value)):
        if not issubclass(type(part.value), _PLAIN):
            yield part._replace(step=above.step + part.step, name=made)
    if type(value) is types.FunctionType:
        for part in (*enclosed(value), *_defaults(value)):
            yield part._replace(step=f"{part.step} of {above.step}", name=None)
        yield from _globals(value)
    for kind in type(value).__mro__ if made is None else ():
        if not _is_of_a_library(kind):
            for name, part in list(vars(kind).items()):
                if type(part) is types.FunctionType:
                    yield from _globals(part)
                elif not issubclass(type(part), (*_PLAIN, property, staticmethod, classmethod)):
                    yield Held(f"{above.step}.{name}", part)


def _defaults(function: types.FunctionType) -> Iterator[Held]:
    for place, value in enumerate(function.__defaults__ or ()):
        yield Held(f"default argument {place}", value)


def _globals(function: types.FunctionType) -> Iterator[Held]:
    """The variables of its module that a function of the program uses."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [one for one in code.co_consts if type(one) is types.CodeType]
        for name in code.co_names:
            value = function.__globals__.get(name)
            if not issubclass(type(value), _PLAIN) and not callable(value):
                yield Held(f"global {name}", value)


def _home(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_of_a_library(kind: type) -> bool:
    """Whether a class is no code of the program's own. A dataset of a library holds what the program gave it."""
    if issubclass(kind, Dataset):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and (file is None or is_installed(file) or is_ours(file))


def _descriptor(value: Any) -> int | None:
    """The descriptor of an object, asked only where no code of the program's own runs."""
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
    """Whether a file reads from one stream and writes to another. It does not say which: one of a socket's, for example."""
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
    """Whether a file is open for reading, in a way that uses the position."""
    if not issubclass(type(file), io.IOBase):
        return False
    with contextlib.suppress(Exception):
        return bool(file.readable())
    return False


def _is_native_handle(value: Any) -> bool:
    """Whether an object of native code has to be closed, and is neither memory nor a lock."""
    kind = type(value)
    ends = any(hasattr(kind, name) for name in _ENDS)
    if not ends or hasattr(kind, "acquire") or callable(getattr(kind, "fileno", None)) or kind in _PYTHONS:
        return False
    try:
        memoryview(value)
    except TypeError:
        return any(map(_is_native, kind.__mro__)) and not _is_closed(value)
    except Exception:  # noqa: BLE001 - memory that is closed
        return False
    return False


def _is_closed(value: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(getattr(value, "closed", False)) or not getattr(value, "valid", True)
    return False


def _is_native(kind: type) -> bool:
    """Whether a class has methods, and native code alone."""
    own = vars(kind)
    if kind is object or "__dict__" in own or "__slots__" in own:
        return False
    kinds = {type(value) for value in own.values()}
    return types.FunctionType not in kinds and any(one.__name__ in _NATIVE_METHODS for one in kinds)
