"""`share(obj)`: replaces an object's large containers by shared ones."""

from __future__ import annotations

import itertools
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from unjam.shared.arrays import SharedArray
from unjam.shared.dicts import SharedDict
from unjam.shared.lists import SharedList
from unjam.shared.plain import is_plain
from unjam.system.logs import log
from unjam.system.object_graph import Held, attributes, items, walk

# containers with fewer bytes, or fewer items, are not worth sharing
LARGE, FEWEST = 1 << 20, 100
# containers with more items are not searched for containers inside them
MOST_PARTS = 1000
DEEPEST = 12
# immutable types that hold no other objects
ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None)})
MOST_OBJECTS = 100_000
_SAMPLE = 64


def estimate(container: Any) -> int:
    """Estimate how many bytes a container and its items take as Python objects, from a sample."""
    count = len(container)
    own = sys.getsizeof(container)
    if not count:
        return own
    if isinstance(container, dict):
        sample = [part for pair in _sample_of(container.items(), count) for part in pair]
        return own + _size_of(sample, set(), 0) * count * 2 // max(1, len(sample))
    sample = _sample_of(container, count)
    return own + _size_of(sample, set(), 0) * count // max(1, len(sample))


def _sample_of(items: Any, count: int) -> list[Any]:
    step = max(1, count // _SAMPLE)
    if isinstance(items, (list, tuple)):
        return [items[place] for place in range(0, count, step)][:_SAMPLE]
    # a dict has no access by position, so take the first items
    return [item for _, item in zip(range(_SAMPLE), items, strict=False)]


def _size_of(items: Any, seen: set[int], depth: int) -> int:
    total = 0
    for item in items:
        if id(item) in seen or item is None or isinstance(item, (bool, type, types.ModuleType)):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item, 64)
        if depth < 4 and type(item) in (list, tuple, set, frozenset):
            total += _size_of(item if len(item) <= MOST_PARTS else list(item)[:MOST_PARTS], seen, depth + 1)
        elif depth < 4 and type(item) is dict:
            total += _size_of([part for pair in item.items() for part in pair], seen, depth + 1)
    return total


def _is_array(value: Any) -> bool:
    """Whether it is a plain numpy array, or a plain tensor in this process's memory."""
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    is_tensor = type(value) is torch.Tensor and value.device.type == "cpu"
    return is_tensor and value.layout is torch.strided and not value.requires_grad


def locations(root: Any) -> Iterator[Held]:
    """Everything below an object, nearest first. Searches each object once, and large containers not at all."""
    start = Held("", root)
    return (part for part, _ in walk(start, _parts, deepest=DEEPEST, most=MOST_OBJECTS))


def _parts(above: Held) -> Iterator[Held]:
    obj = above.value
    if isinstance(obj, (type, types.ModuleType, types.FunctionType, str, bytes)):
        return
    found = items(obj) if type(obj) in (list, dict, tuple) and len(obj) <= MOST_PARTS else iter(())
    for part in itertools.chain(found, attributes(obj, slots=False)):
        if type(part.value) not in ATOMS:
            yield part


def share(obj: Any, *, least: int = LARGE) -> Any:
    """Return `obj` with its large containers shared.

    Lists and tuples become a `SharedList`, dicts a `SharedDict`, numpy arrays a `SharedArray`; a
    tensor stays a tensor, over shared memory. Subclasses, and containers of less than `least`
    bytes, stay as they are.

    If `obj` itself is a large container, the result is its shared form. Any other object is changed
    in place: its attributes, and those of the objects that it holds.
    """
    if _is_large(obj, least):
        return _shared(obj)
    known: dict[int, Any] = {}
    keep: list[Any] = []
    for part in locations(obj):
        if part.put is None or not _is_large(part.value, least):
            continue
        if id(part.value) not in known:
            keep.append(part.value)  # keep it alive, so that no new object gets its id
            known[id(part.value)] = _shared(part.value)
        part.put(known[id(part.value)])
    return obj


def _is_large(value: Any, least: int) -> bool:
    if _is_array(value):
        return bool(value.nbytes >= least)
    if type(value) not in (list, tuple, dict) or len(value) < FEWEST or estimate(value) < least:
        return False
    # a few objects are not shared as a whole: `share` looks for large arrays inside them
    return len(value) > MOST_PARTS or is_plain(value) is None


def _shared(value: Any) -> Any:
    try:
        if not _is_array(value):
            return SharedDict(value) if type(value) is dict else SharedList(value)
        shared = SharedArray(value)
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        # its items cannot be pickled, or cannot be found in another process
        log.warning("share() does not share a %s of %d items: %s", type(value).__name__, len(value), error)
        return value
    return shared.tensor() if isinstance(value, torch.Tensor) else shared
