"""The state outside the dataset that loading reads: globals, class attributes, environment variables, process settings.

Each worker has its own copy of it. If a copy differs from the program's, or changes while the worker
runs, samples may differ too.
"""

from __future__ import annotations

import contextlib
import locale
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from unjam.doctor.check.inventory import names_in
from unjam.doctor.check.target.describe_loader import hashed, nested_datasets, transforms
from unjam.doctor.check.target.source_reading import loading_functions
from unjam.doctor.facts.program_facts import HASH, SETTING
from unjam.doctor.facts.source import file_of, where_set
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users
from unjam.system.proc_files import field

_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, type(None))
MOST = 200


class OutsideState:
    """The names outside the dataset that the functions of one loader use."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self._globals: dict[str, tuple[dict[str, Any], str]] = {}
        self._caches: dict[str, Any] = {}  # functions with an lru_cache
        self._classes: dict[str, tuple[type, str]] = {}
        self._variables: set[str] = set()
        self._collate = collate
        self._names: set[str] = set()  # every name that the functions use
        self.files: set[str] = set()  # the files of these functions
        with contextlib.suppress(Exception):
            for function in loading_functions({"dataset": dataset, "collate_fn": collate}):
                self._add(function)

    def _add(self, function: types.FunctionType) -> None:
        space = function.__globals__
        self.files.add(function.__code__.co_filename)
        used, texts = set(names_in(function.__code__)), set(_texts(function.__code__))
        self._names |= used | texts
        for name in used:
            value = space.get(name)
            if isinstance(value, types.ModuleType) and is_users(getattr(value, "__file__", None) or "<none>"):
                for inner in used & set(vars(value)):
                    if isinstance(vars(value)[inner], _PLAIN) and not inner.startswith("__"):
                        self._globals[f"{name}.{inner}"] = (vars(value), inner)
            if callable(getattr(value, "cache_info", None)):
                self._caches[name] = value
            if name in space and isinstance(value, _PLAIN) and not name.startswith("__"):
                self._globals[name] = (space, name)
            elif isinstance(value, type) and is_users(file_of(value)):
                self._add_class(value)
        self._variables |= {one for one in texts if one.isupper() and len(one) > 2} | (texts & set(os.environ))
        owner = function.__qualname__.rpartition(".")[0]
        kind = space.get(owner)
        if isinstance(kind, type):
            self._add_class(kind)

    def _add_class(self, kind: type) -> None:
        for name, value in vars(kind).items():
            if isinstance(value, _PLAIN) and not name.startswith("__") and len(self._classes) < MOST:
                self._classes[f"{kind.__name__}.{name}"] = (kind, name)

    def unused(self, dataset: Any) -> dict[str, Place | None]:
        """The callables of the user's datasets whose name no function uses, and where each is set."""
        found: dict[str, Place | None] = {}
        with contextlib.suppress(Exception):
            for path, _, _ in transforms(dataset):
                name = path.rpartition(".")[2]
                owner = next((one for at, one in nested_datasets(dataset) if f"{at}.{name}" == path), None)
                if owner is None or name in self._names or not is_users(file_of(type(owner))):
                    continue
                found[path] = where_set(owner, name)
        return found

    def read(self) -> dict[str, str]:
        """A hash of the current value of each name."""
        found: dict[str, str] = {}
        with contextlib.suppress(Exception):
            for path, (space, name) in list(self._globals.items())[:MOST]:
                found[path] = hashed(space.get(name))
            for path, value in process_settings().items():
                if path != HASH or "hash" in self._names:
                    found[f"{SETTING}{path}"] = hashed(value)
            for path, cached in self._caches.items():
                info = cached.cache_info()
                found[f"{path} (lru_cache)"] = f"{info.currsize}:{info.maxsize}"
            for path, (kind, name) in self._classes.items():
                found[path] = hashed(vars(kind).get(name))
            for name in self._variables:
                if name in os.environ:
                    found[f"os.environ[{name!r}]"] = hashed(os.environ[name])
            for name, value in list(getattr(self._collate, "__dict__", {}).items())[:20]:
                if isinstance(value, _PLAIN):
                    found[f"collate_fn.{name}"] = hashed(value)
        return found


def process_settings() -> dict[str, str]:
    """Settings of this process that affect code implicitly."""
    found = {
        "the working folder": os.getcwd(),
        HASH: str(hash("unjam")),
        "umask": "".join(field("/proc/self/status", "Umask")),
    }
    found["the locale"] = str(locale.setlocale(locale.LC_ALL))
    found["the recursion limit"] = str(sys.getrecursionlimit())
    torch, numpy, decimal = (sys.modules.get(name) for name in ("torch", "numpy", "decimal"))
    if torch is not None:
        found["torch.get_default_dtype()"] = str(torch.get_default_dtype())
        found["torch.get_default_device()"] = str(getattr(torch, "get_default_device", lambda: "cpu")())
    if numpy is not None:
        found["numpy.geterr()"] = repr(numpy.geterr())
    if decimal is not None:
        found["decimal.getcontext()"] = repr(decimal.getcontext())[:60]
    return found


def _texts(code: types.CodeType) -> Iterator[str]:
    """The string constants of a function, including nested functions."""
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _texts(one)
        elif isinstance(one, str):
            yield one
