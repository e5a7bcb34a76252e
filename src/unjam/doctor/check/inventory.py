"""What a dataset holds: locks, handles, generators, threads, queues, arrays, large containers.

We search from the dataset, the collate function and the other arguments of a worker through attributes,
containers, closures and the globals that their code uses. An object is classified by its methods, never
by its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import stat
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from unjam.doctor.check.randomness import is_generator
from unjam.doctor.facts.case import Part
from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.facts.source import where_set
from unjam.shared.plain import is_plain
from unjam.shared.share import estimate
from unjam.system import object_graph
from unjam.system.file_owner import is_users
from unjam.system.object_graph import Held
from unjam.system.proc_files import descriptor_flags, descriptor_target, descriptors

DEEPEST = 7
MOST_OBJECTS = 20_000
EXAMINED = 24  # items examined in one container
MANY_OBJECTS = 20_000  # containers with at least this many Python objects are reported
LARGE_ARRAY = 1 << 20
NUMBER_NAMES = ("fd", "fileno", "desc", "handle", "file")
_PLAIN = (str, bytes, int, float, bool, complex, type(None), types.ModuleType, type, types.CodeType, range, slice)


def walk(roots: Mapping[str, Any]) -> Iterator[Held]:
    """Every reachable object, once, nearest first, with its whole path."""

    def of_roots(above: Held) -> Iterator[Held]:
        return (
            (Held(name, root, None, name) for name, root in roots.items() if root is not None)
            if above is top
            else _parts(above)
        )

    top = Held("", roots)
    for part, fresh in object_graph.walk(top, of_roots, deepest=DEEPEST + 1, most=MOST_OBJECTS):
        if fresh and not isinstance(part.value, _PLAIN):
            yield part


def module_file(kind: type) -> str:
    """The file of a class's module; "<ipynb>" for a class of a notebook or prompt."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<ipynb>"


def _is_torch_object(obj: Any) -> bool:
    return hasattr(obj, "untyped_storage") or type(obj).__module__.startswith(("torch.nn", "torch._C"))


def _parts(above: Held) -> Iterator[Held]:
    """The parts of an object, each with its whole path."""
    path, obj = above.path, above.value
    if isinstance(obj, _PLAIN) or _is_torch_object(obj):
        return
    if isinstance(obj, types.MethodType):
        yield Held(path.rpartition(".")[0] or path, obj.__self__)
        if isinstance(obj.__func__, types.FunctionType):
            yield from _function_parts(obj.__func__)
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    else:
        parts = itertools.chain(object_graph.items(obj, EXAMINED), object_graph.wrapped(obj))
        if not isinstance(obj, (dict, list, tuple, functools.partial)):
            parts = itertools.chain(parts, object_graph.attributes(obj, 200))
        for part in parts:
            yield part._replace(path=f"{path}{part.path}"[:200])
        if not isinstance(obj, (dict, list, tuple, functools.partial)):
            yield from _class_parts(type(obj), path)


def _class_parts(kind: type, path: str) -> Iterator[Held]:
    """Attributes of the user's classes, and the globals that their methods use."""
    for base in kind.__mro__:
        if base is object or not is_users(module_file(base)):
            continue
        for name, value in list(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType):
                yield from _function_parts(function)
            elif not name.startswith("__") and not callable(value):
                yield Held(f"{path}.{name}", value, base, name, functools.partial(setattr, base, name))


def _function_parts(function: types.FunctionType) -> Iterator[Held]:
    yield from object_graph.enclosed(function)
    if is_users(function.__code__.co_filename):
        space = function.__globals__
        for name in names_in(function.__code__):
            if name in space:
                yield Held(name, space[name], space, name, functools.partial(space.__setitem__, name))
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield Held(getattr(wrapped, "__name__", "wrapped"), wrapped, function, "__wrapped__")


def names_in(code: types.CodeType) -> Iterator[str]:
    """Every name that a function's code looks up, including nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def contents(roots: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """The lengths of the reachable containers, and a hash of the identities of their items."""
    return {
        found.path: (len(found.value), hash(tuple(map(id, itertools.islice(found.value, MOST_IDENTIFIED)))))
        for found in walk(roots)
        if isinstance(found.value, (list, dict, set, deque, bytearray))
    }


MOST_IDENTIFIED = 1000


# -- the kind of an object, by its methods ---------------------------------------------------------


def kind_of(obj: Any) -> str:
    """The kind of a part, as in `Part.kind`; "" for any other object."""
    try:
        if isinstance(obj, (list, dict, set, frozenset, tuple)):
            return "objects" if len(obj) >= MANY_OBJECTS and _holds_objects(obj) else ""
        if is_generator(obj):
            return "generator"
        if isinstance(obj, threading.Thread):
            return "thread"
        if has_methods(obj, "wait", "abort", "reset"):
            return "barrier"
        if has_methods(obj, "acquire", "release"):
            return "lock"
        if has_methods(obj, "submit", "shutdown"):
            return "executor"
        if has_methods(obj, "run_forever", "is_running"):
            return "loop"
        if has_methods(obj, "get", "put", "empty"):
            return "queue"
        if descriptor(obj) is not None:
            return "handle"
        if hasattr(type(obj), "nbytes") and hasattr(type(obj), "dtype"):
            if str(obj.dtype) == "object" and obj.size >= MANY_OBJECTS:
                return "objects"
            return "array" if int(obj.nbytes) >= LARGE_ARRAY else ""
    except Exception:  # noqa: BLE001 - the object's own code failed
        return ""
    return ""


def has_methods(obj: Any, *methods: str) -> bool:
    """Whether an object has all these methods.

    We look them up in its class and its __dict__, and never use getattr on the object: an object that creates
    attributes on demand (a C library, a remote proxy) would seem to have them all.
    """
    kind, own = type(obj), getattr(type(obj), "__dictoffset__", 0) and vars(obj)
    if isinstance(obj, (type, ctypes.CDLL)):
        return False
    return all(callable(getattr(kind, name, None)) or (own and callable(own.get(name))) for name in methods)


def _holds_objects(container: Any) -> bool:
    values = container.values() if isinstance(container, dict) else container
    return any(not isinstance(value, (bool, type(None))) for value in itertools.islice(values, 8))


def descriptor(obj: Any) -> int | None:
    """The file descriptor of an object, or None; also None for a standard stream."""
    if not has_methods(obj, "fileno"):
        return None
    try:
        fd = obj.fileno()
    except Exception:  # noqa: BLE001 - closed, detached, or in memory
        return None
    return fd if isinstance(fd, int) and fd > 2 else None


def estimated_bytes(container: Any) -> int:
    """About how many bytes a container keeps alive, estimated from a sample of its items."""
    return int(container.size) * 64 if hasattr(container, "dtype") else estimate(container)


def why_not_shared(container: Any) -> str:
    """Why unjam's workers would copy a container when they read it; "" if they would share it.

    Only the first items are checked.
    """
    if type(container) not in (list, tuple, dict):
        return f"it is a {type(container).__qualname__}, not exactly a list, tuple or dict"
    sample = list(zip(range(200), container.items() if isinstance(container, dict) else container, strict=False))
    odd = is_plain([item for _, item in sample])
    return f"its items hold a {odd}" if odd else ""


# -- the inventory ---------------------------------------------------------------------------------


class Inventory:
    """The parts of one loader, with the objects themselves."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.found: dict[str, Held] = {}
        self.names: dict[int, str] = {}
        self._holders: dict[str, Held] = {}
        self._numbers: dict[str, Held] = {}
        opened = open_files()
        for found in walk(roots):
            self._find_numbers(found, opened)
            kind = kind_of(found.value)
            shown = self._shown(found.path)
            self.names.setdefault(id(found.value), shown)
            if kind and shown in self.found and kind_of(self.found[shown].value) != kind:
                self.found[found.path] = found  # e.g. a pipe and a lock of one holder
            elif kind:
                self.found.setdefault(shown, found)
            elif _is_from_standard_library(found.value) and not isinstance(
                found.value, (list, dict, tuple, types.FunctionType, types.MethodType)
            ):
                self._holders[found.path] = found

    def _find_numbers(self, found: Held, opened: dict[int, str]) -> None:
        """Find descriptors that are stored as plain ints under a name such as `fd`."""
        for name, value in list(getattr(found.value, "__dict__", {}).items())[:200] if opened else ():
            if type(value) is int and value in opened and any(hint in str(name).lower() for hint in NUMBER_NAMES):
                path = f"{found.path}.{name}"
                self._numbers[path] = Held(path, value, found.value, name)

    def _shown(self, path: str) -> str:
        """The path of the standard-library object around a path, if there is one.

        Users know their ZipFile, not the file inside it.
        """
        for holder in self._holders:
            if path.startswith((f"{holder}.", f"{holder}[")):
                return holder
        return path

    def generators(self) -> dict[str, Any]:
        """The random generators, by path."""
        return {path: found.value for path, found in self.found.items() if kind_of(found.value) == "generator"}

    def parts(self) -> tuple[Part, ...]:
        """The parts as facts, without the objects."""
        numbers = [
            Part(
                path,
                "handle",
                "int",
                where_set(found.holder, found.name),
                ObjectState(fd=found.value, target=descriptor_target(found.value)),
            )
            for path, found in self._numbers.items()
        ]
        return (*(_part(path, found, self._holders.get(path, found)) for path, found in self.found.items()), *numbers)


def _is_from_standard_library(obj: Any) -> bool:
    return type(obj).__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}


def _part(path: str, found: Held, shown: Held) -> Part:
    obj, kind = found.value, kind_of(found.value)
    type_name = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
    state = ObjectState()
    if kind == "handle":
        fd = descriptor(obj)
        state = ObjectState(fd=fd, target=descriptor_target(fd))
    elif kind == "lock":
        state = lock_state(obj)
    elif kind == "objects":
        state = ObjectState(count=len(obj), nbytes=estimated_bytes(obj), why_not_shared=why_not_shared(obj))
    elif kind == "array":
        state = ObjectState(nbytes=int(obj.nbytes), mapped=type(obj).__name__ == "memmap")
    elif kind == "queue":
        state = ObjectState(between_processes=type(obj).__module__.startswith("multiprocessing"))
    place = where_set(shown.holder, shown.name)
    return Part(path, kind, type_name, place if place and is_users(place.file) else None, state)


def lock_state(lock: Any) -> ObjectState:
    """Whether a lock is held, its owner if known, and whether processes share it."""
    sem = getattr(lock, "_semlock", None)
    inner = getattr(lock, "_lock", None)
    if sem is None and inner is not None and hasattr(inner, "_semlock"):
        sem = inner._semlock  # noqa: SLF001 - a condition around a lock
    text, locked, mine = repr(lock), None, True
    if sem is not None:
        locked, mine = sem._is_zero(), bool(sem._is_mine())  # noqa: SLF001
    elif has_methods(lock, "locked"):
        with contextlib.suppress(Exception):  # user code
            locked = bool(lock.locked())
    value = getattr(lock, "__dict__", {}).get("_value")
    if isinstance(value, int):  # threading.Semaphore
        locked = value <= 0
    if "owner=" in text and locked is None:
        locked = "unlocked" not in text
    return ObjectState("lock", between_processes=sem is not None, locked=locked, mine=mine)


def open_files() -> dict[int, str]:
    """The open regular files of this process that may hold data."""
    found = {}
    for fd, target in descriptors().items():
        with contextlib.suppress(OSError):
            if fd <= 2 or not stat.S_ISREG(os.fstat(fd).st_mode) or target.startswith(("/memfd:", "/dev/shm/")):
                continue
            # a file that is only written, such as a log, shares its offset on purpose
            if not descriptor_flags(fd) & (os.O_WRONLY | os.O_APPEND):
                found[fd] = target
    return found
