"""Finds the part of an object that cannot be pickled: its path, as the user would write it in code.

We search by trying. If an object fails, we try each of its parts alone and continue in the part
that fails. The culprit is the object that fails although all its parts can be pickled.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unjam.errors import type_name
from unjam.loader.ship.reachable_modules import MAIN, nested_codes
from unjam.loader.ship.shared_maps import SharedMaps
from unjam.system import object_graph

# We stop the search at this depth.
MAX_DEPTH = 40
# how many parts of one object we try; a million similar items need not all be tried
MAX_PARTS = 2000

_STDLIB = sys.stdlib_module_names - {"__main__"}
# standard library classes whose attributes the user sets
_OPEN = (types.SimpleNamespace, argparse.Namespace)


@dataclass(frozen=True, slots=True)
class Culprit:
    """An object that cannot be pickled: its path, its type, the pickling error."""

    path: str
    type_name: str
    reason: str
    # meant to be shared between processes: a queue, a lock, shared memory
    between_processes: bool = False


def find_culprit(
    name: str, root: object, attempt: Callable[[object], None], *, by_name: bool = False
) -> Culprit | None:
    """Return the deepest part of `root` for which `attempt` raises, or None if `root` can be pickled.

    `by_name`: functions and classes are pickled by name, as plain pickle does, so we do not search
    inside them.
    """
    reason = _why(root, attempt)
    if reason is None:
        return None
    path, found, seen = name, root, {id(root)}
    for _ in range(MAX_DEPTH):
        for step, part in () if by_name and isinstance(found, (types.FunctionType, type)) else _safe_parts(found):
            if by_name and step.startswith(" ->"):
                continue
            if id(part) in seen:
                continue
            seen.add(id(part))
            inner = _why(part, attempt)
            if inner is not None:
                path, found, reason = path + step, part, inner
                break
        else:
            break
    shared = False
    with contextlib.suppress(Exception):  # some objects raise on any access
        shared = _is_between_processes(found)
    return Culprit(path, type_name(type(found)), reason, shared)


def _is_between_processes(obj: Any) -> bool:
    """Return whether an object, or the memory of an array, is shared between processes."""
    homes = {kind.__module__.partition(".")[0] for kind in type(obj).__mro__}
    if homes & {"multiprocessing", "_multiprocessing"}:
        return True
    address = getattr(obj, "__array_interface__", {}).get("data", (0,))[0] if "numpy" in homes else 0
    if "torch" in homes and hasattr(obj, "data_ptr"):
        address = obj.data_ptr()
    return bool(address) and SharedMaps().writable_shared(address)


def _why(part: object, attempt: Callable[[object], None]) -> str | None:
    try:
        attempt(part)
    except RecursionError:
        return "it is nested too deeply to be pickled"
    except Exception as error:  # noqa: BLE001 - the user's pickling code may raise anything
        return f"{type(error).__name__}: {error}" if type(error).__name__ != "CannotPickle" else str(error)
    return None


def _safe_parts(obj: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object until it raises; some objects raise on any access."""
    with contextlib.suppress(Exception):
        yield from _parts(obj)


def _parts(obj: Any) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object, each with the text that leads from the object to it."""
    if isinstance(obj, Mapping) and not isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in itertools.islice(obj.items(), MAX_PARTS))
    yield from _steps(object_graph.items(obj, MAX_PARTS))
    if isinstance(obj, (functools.partial, types.MethodType)):
        yield from _steps(object_graph.wrapped(obj))
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        for name, value in itertools.islice(vars(obj).items(), MAX_PARTS):
            if isinstance(value, (types.FunctionType, staticmethod, classmethod)) or not name.startswith("__"):
                yield f".{name}", getattr(value, "__func__", value)
    elif type(obj).__module__.partition(".")[0] not in _STDLIB or isinstance(obj, _OPEN):
        # Not for standard library classes: their internals do not help the user.
        # We do not call __getstate__, which may leave out the failing attribute.
        yield from _steps(object_graph.attributes(obj, MAX_PARTS))
        if type(obj).__module__ in MAIN or "<locals>" in type(obj).__qualname__:
            yield f" -> class {type(obj).__name__}", type(obj)


def _steps(parts: Iterator[object_graph.Held]) -> Iterator[tuple[str, object]]:
    return ((part.path, part.value) for part in parts)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for part in object_graph.enclosed(function):
        yield f" -> variable {part.path!r} of the enclosing function", part.value
    for place, value in enumerate(function.__defaults__ or ()):
        yield f" -> default argument {place}", value
    if function.__module__ in MAIN:
        for code in nested_codes(function.__code__):
            for name in code.co_names:
                if name in function.__globals__:
                    yield f" -> global {name!r}", function.__globals__[name]
