"""Tells whether the code of an iterable asks which worker it is in."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from unjam.loader.ship.reachable_modules import nested_codes
from unjam.system.object_graph import Held, attributes, items, walk

# how many objects we inspect at most
MAX_PARTS = 200


def asks_for_its_worker(dataset: Any) -> bool:
    """Return whether an iterable's code asks which worker it is in.

    If it does not, every worker yields all samples.
    """
    below = walk(Held("", dataset), _callables, deepest=8, most=MAX_PARTS)
    return _uses_worker_info(dataset) or any(_uses_worker_info(part.value) for part, fresh in below if fresh)


def _callables(above: Held) -> Iterator[Held]:
    """Yield the values in an object, and in its lists and tuples, that may have code."""
    for part in attributes(above.value, 50, slots=False):
        for one in items(part.value, 20) if type(part.value) in (list, tuple) else (part,):
            if callable(one.value) or hasattr(one.value, "__dict__"):
                yield one


def _uses_worker_info(thing: Any) -> bool:
    if isinstance(thing, type):
        return False
    if hasattr(type(thing), "apply_sharding"):  # torch calls this on data pipes
        return True
    codes = [getattr(thing, "__code__", None)]
    for kind in type(thing).__mro__:
        if not kind.__module__.startswith(("builtins", "typing", "abc", "torch.utils.data.dataset")):
            codes += [getattr(value, "__code__", None) for value in vars(kind).values()]
    found = [one for code in codes if isinstance(code, types.CodeType) for one in nested_codes(code)]
    return any("worker_info" in name for code in found for name in code.co_names)
