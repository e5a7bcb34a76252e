"""Finds the modules that a dataset's code can reach, starting from its classes and functions.

We only inspect and never import. A module's variables name the modules, classes and functions it
uses, and the code of its functions names what they import when they run. Finding too many modules
is harmless: a worker applies the state of a module only when it imports that module. Missing one
could silently give other data.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unjam.system.file_owner import is_installed, is_ours

MAIN = ("__main__", "__mp_main__")
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL")
# wrappers of a class's functions -> attribute with the function
_WRAPPERS = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.cached_property: "func"}
# a variable with more items holds data, not code
MAX_ITEMS = 200


@dataclass(slots=True)
class Reached:
    """The user's modules that were reached, and the names of the installed modules."""

    own: dict[str, types.ModuleType] = field(default_factory=dict)
    installed: set[str] = field(default_factory=set)


def reach(roots: Iterable[str]) -> Reached:
    """Return everything that can be reached from these modules."""
    found = Reached()
    queue = sorted(set(roots))
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        module = sys.modules.get(name)
        if name in seen or module is None:
            continue
        seen.add(name)
        if is_users_module(module):
            found.own[name] = module
            queue += sorted(_named_by(module) - seen)
            if "." in name:
                queue.append(name.rpartition(".")[0])  # importing a module imports its package
        elif is_installed_module(module):
            found.installed.add(name)
    return found


def installed_in_use() -> dict[str, types.ModuleType]:
    """Return the installed modules that variables of the program's modules refer to.

    Code needs such a variable to set a flag of an installed module.
    """
    found: dict[str, types.ModuleType] = {}
    for name, module in list(sys.modules.items()):
        if name in MAIN or is_users_module(module):
            for value in list(vars(module).values()):
                if is_installed_module(value):
                    found[value.__name__] = value
                    found |= _submodules(value)
    return found


def _submodules(module: types.ModuleType) -> dict[str, types.ModuleType]:
    prefix = module.__name__ + "."
    inner = (value for value in list(vars(module).values()) if file_of(value))
    return {str(value.__name__): value for value in inner if str(value.__name__).startswith(prefix)}


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


def imports_of(code: types.CodeType, package: str) -> Iterator[str]:
    """Yield the loaded modules that code names: in its imports, or in strings that it may look up."""
    for one in nested_codes(code):
        for word in (*one.co_names, *(c for c in one.co_consts if isinstance(c, str) and len(c) < 100)):
            if word in sys.modules:
                yield word
            if package and f"{package}.{word}" in sys.modules:
                yield f"{package}.{word}"


def uses_globals(code: types.CodeType, space: Mapping[str, Any]) -> bool:
    """Return whether code, or code nested in it, uses variables of its module; `space` has them."""
    steps = (step for one in nested_codes(code) for step in dis.get_instructions(one))
    return any(step.opname in _WRITES or (step.opname == "LOAD_GLOBAL" and step.argval in space) for step in steps)


# methods of an object's class that pickle may call when it rebuilds the object
_CALLED = (
    "__setstate__",
    "__reduce__",
    "__reduce_ex__",
    "__new__",
    "__setitem__",
    "__setattr__",
    "append",
    "extend",
    "add",
    "__hash__",
)


def runs_code(kind: type) -> str:
    """Return a method of the program's code that runs when an object is rebuilt; empty: none."""
    for base in kind.__mro__:
        if base.__module__ in MAIN or is_users_module(sys.modules.get(base.__module__)):
            for name in _CALLED:
                if isinstance(vars(base).get(name), (types.FunctionType, staticmethod, classmethod)):
                    return f"{kind.__qualname__}.{name}"
    return ""


def is_users_module(module: Any) -> bool:
    """Return whether a module is the user's. `__main__` does not count: we send it by value."""
    path = file_of(module)
    if not path or module.__name__ in MAIN:
        return False
    return not is_ours(path) and not is_installed(path)


def is_installed_module(module: Any) -> bool:
    """Return whether a module belongs to an installed package other than the stdlib and unjam."""
    path = file_of(module)
    if not path or is_ours(path) or module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return False
    return is_installed(path)


def file_of(module: Any) -> str:
    """Return the file of a module, without running the module's own code."""
    # not isinstance: it reads `__class__` of the object, and some objects then warn
    if not issubclass(type(module), types.ModuleType):
        return ""
    path = vars(module).get("__file__")  # not getattr: a module's __getattr__ may run code
    return path if isinstance(path, str) else ""


def _named_by(module: types.ModuleType) -> set[str]:
    found: set[str] = set()
    package = vars(module).get("__package__") or ""
    for value in list(vars(module).values()):
        found.update(_module_names(value, module.__name__, package))
        if type(value) in (list, tuple, set, frozenset, dict) and len(value) <= MAX_ITEMS:
            for item in value.values() if type(value) is dict else value:
                found.update(_module_names(item, module.__name__, package))
    found.discard(module.__name__)
    return found


def _module_names(value: Any, here: str, package: str) -> Iterator[str]:
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        yield str(vars(value).get("__name__", ""))
        return
    if kind in (types.FunctionType, type) or issubclass(kind, type):
        home = vars(value).get("__module__") if issubclass(kind, type) else value.__module__
        yield str(home)
        if home == here:
            for code in _codes(value):
                yield from imports_of(code, package)
        return
    yield str(kind.__module__)


def _codes(value: Any) -> Iterator[types.CodeType]:
    if isinstance(value, types.FunctionType):
        yield value.__code__
        return
    for part in list(vars(value).values()):
        # Use the type: a user object may run code on attribute access.
        name = _WRAPPERS.get(type(part))
        function = part if name is None else getattr(part, name)
        if type(function) is types.FunctionType:
            yield function.__code__
