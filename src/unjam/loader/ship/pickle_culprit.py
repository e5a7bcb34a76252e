"""Which part of an object cannot be pickled: the path to it, in the words of the user's own code.

Found by trying: an object fails, so each part of it is tried alone, and the search goes on in the part that fails. What
fails though all its parts can be pickled is the culprit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unjam.loader.ship.shared_maps import SharedMaps

# a structure deeper than this is reported at this depth
DEEPEST = 40
# parts of one container that are tried; a million equal items need not all be
MOST_PARTS = 2000


_PYTHONS = sys.stdlib_module_names - {"__main__"}
# classes of Python's own whose attributes are the user's
_OPEN = (types.SimpleNamespace, argparse.Namespace)


@dataclass(frozen=True, slots=True)
class Culprit:
    """Something that cannot cross the border: where it hangs, what it is, what pickling said."""

    path: str
    type_name: str
    reason: str
    # it is meant to be shared: a queue, a lock, memory that several processes write to
    between_processes: bool = False


def find_culprit(
    name: str, root: object, attempt: Callable[[object], None], *, by_name: bool = False
) -> Culprit | None:
    """The deepest part of `root` for which `attempt` raises, or None if it does not.

    `by_name`: functions and classes are written by their names, as plain pickle does; what is inside them does not matter.
    """
    reason = _why(root, attempt)
    if reason is None:
        return None
    path, found, seen = name, root, {id(root)}
    for _ in range(DEEPEST):
        for step, part in () if by_name and isinstance(found, (types.FunctionType, type)) else _askable_parts(found):
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
    with contextlib.suppress(Exception):  # as above: some objects cannot be asked anything
        shared = _is_between_processes(found)
    return Culprit(path, _type_name(found), reason, shared)


def _is_between_processes(obj: Any) -> bool:
    """Whether an object, or what an array looks at, belongs to several processes."""
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
    except Exception as error:  # noqa: BLE001 - whatever user code's pickling raises is the answer
        return f"{type(error).__name__}: {error}" if type(error).__name__ != "CannotShip" else str(error)
    return None


def _type_name(obj: object) -> str:
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _askable_parts(obj: Any) -> Iterator[tuple[str, object]]:
    """The parts of an object; of one that answers every question with an exception, as many as it gave."""
    with contextlib.suppress(Exception):
        yield from _parts(obj)


def _parts(obj: Any) -> Iterator[tuple[str, object]]:
    """The parts of an object, each with the text that leads from the object to it."""
    if isinstance(obj, Mapping):
        for key, value in _some(obj.items()):
            yield f"[{key!r}]", value
    elif isinstance(obj, (list, tuple)):
        names = getattr(obj, "_fields", None)
        for place, value in _some(enumerate(obj)):
            yield (f".{names[place]}" if names else f"[{place}]"), value
    elif isinstance(obj, (set, frozenset)):
        for value in _some(obj):
            yield "{…}", value
    if isinstance(obj, functools.partial):
        yield ".func", obj.func
        yield from ((f".args{step}", part) for step, part in _parts(obj.args))
        yield from ((f".keywords{step}", part) for step, part in _parts(obj.keywords))
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        for name, value in _some(vars(obj).items()):
            if isinstance(value, (types.FunctionType, staticmethod, classmethod)) or not name.startswith("__"):
                yield f".{name}", getattr(value, "__func__", value)
    elif type(obj).__module__.partition(".")[0] not in _PYTHONS or isinstance(obj, _OPEN):
        # the insides of Python's own classes say nothing to the user; such an object is the culprit itself
        yield from _attributes(obj)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" -> variable {name!r} of the enclosing function", cell.cell_contents
        except ValueError:
            continue  # an empty cell
    for place, value in enumerate(function.__defaults__ or ()):
        yield f" -> default argument {place}", value
    if function.__module__ in ("__main__", "__mp_main__"):
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield f" -> global {name!r}", function.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _attributes(obj: Any) -> Iterator[tuple[str, object]]:
    # what the object itself says its state is comes first: __getstate__ may leave the troublesome part out
    state = getattr(obj, "__dict__", None)
    if isinstance(state, dict):
        for name, value in _some(state.items()):
            yield f".{name}", value
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(name, str) and name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                yield f".{name}", getattr(obj, name)
    if type(obj).__module__ in ("__main__", "__mp_main__") or "<locals>" in type(obj).__qualname__:
        yield f" -> class {type(obj).__name__}", type(obj)


def _some(items: Any) -> Iterator[Any]:
    for place, item in enumerate(list(items)):
        if place >= MOST_PARTS:
            return
        yield item
