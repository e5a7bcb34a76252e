"""`share(obj)`: an object's large containers, replaced by ones that exist once."""

from __future__ import annotations

import pickle
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

from unjam.shared.arrays import SharedArray
from unjam.shared.dicts import SharedDict
from unjam.shared.lists import SharedList
from unjam.shared.plain import is_plain
from unjam.system.logs import log

# what is smaller is not worth it
LARGE = 1 << 20
# what has fewer items than this is no crowd of objects
FEWEST = 100
# a container with more items than this is not searched for smaller ones inside
MOST_PARTS = 1000
DEEPEST = 12
# what cannot be changed, and holds nothing
ATOMS = frozenset({str, bytes, int, float, bool, complex, type(None)})
MOST_OBJECTS = 100_000
_SAMPLED = 64


def estimate(container: Any) -> int:
    """About how many bytes a container and its items take as Python's objects; a sample of the items is weighed."""
    count = len(container)
    own = sys.getsizeof(container)
    if not count:
        return own
    if isinstance(container, dict):
        sample = [part for pair in _spread(container.items(), count) for part in pair]
        return own + _weigh(sample, set(), 0) * count * 2 // max(1, len(sample))
    sample = _spread(container, count)
    return own + _weigh(sample, set(), 0) * count // max(1, len(sample))


def _spread(items: Any, count: int) -> list[Any]:
    step = max(1, count // _SAMPLED)
    if isinstance(items, (list, tuple)):
        return [items[place] for place in range(0, count, step)][:_SAMPLED]
    # a dict's items cannot be asked for by place: the first ones stand for all
    return [item for _, item in zip(range(_SAMPLED), items, strict=False)]


def _weigh(items: Any, seen: set[int], depth: int) -> int:
    total = 0
    for item in items:
        if id(item) in seen or item is None or isinstance(item, (bool, type, types.ModuleType)):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item, 64)
        if depth < 4 and type(item) in (list, tuple, set, frozenset):
            total += _weigh(item if len(item) <= MOST_PARTS else list(item)[:MOST_PARTS], seen, depth + 1)
        elif depth < 4 and type(item) is dict:
            total += _weigh([part for pair in item.items() for part in pair], seen, depth + 1)
    return total


def is_array(value: Any) -> bool:
    """Whether it is a plain array of numpy's or a plain tensor in this process's memory."""
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return not value.dtype.hasobject
    return (
        kind.__module__ == "torch"
        and kind.__name__ == "Tensor"
        and value.device.type == "cpu"
        and bool(_strided(value))
    )


def _strided(tensor: Any) -> bool:
    return str(tensor.layout) == "torch.strided" and not tensor.requires_grad


class Slot:
    """A place where something hangs: an attribute, a key, an index."""

    __slots__ = ("holder", "key", "path", "value")

    def __init__(self, holder: Any, key: Any, path: str, value: Any) -> None:
        self.holder = holder
        self.key = key
        self.path = path
        self.value = value

    def put(self, value: Any) -> None:
        """Hang something else there."""
        self.holder[self.key] = value


def slots(root: Any, name: str) -> Iterator[Slot]:
    """Every place below an object, the parts of large containers left out; each object once, nearest first."""
    seen = {id(root)}
    queue: deque[tuple[Any, str, int]] = deque([(root, name, 0)])
    while queue:
        obj, path, depth = queue.popleft()
        for slot in _parts(obj, path):
            yield slot
            if id(slot.value) in seen or depth >= DEEPEST or len(seen) > MOST_OBJECTS:
                continue
            seen.add(id(slot.value))
            queue.append((slot.value, slot.path, depth + 1))


def _parts(obj: Any, path: str) -> Iterator[Slot]:
    if isinstance(obj, (type, types.ModuleType, types.FunctionType, str, bytes)):
        return
    if type(obj) in (list, dict) and len(obj) <= MOST_PARTS:
        for key, value in list(obj.items() if isinstance(obj, dict) else enumerate(obj)):
            if type(value) not in ATOMS:
                yield Slot(obj, key, f"{path}[{key!r}]", value)
    elif type(obj) is tuple and len(obj) <= MOST_PARTS:
        for place, value in enumerate(obj):
            if type(value) in ATOMS:
                continue
            # nothing can be hung into a tuple, but what hangs below it can be reached
            yield Slot(None, place, f"{path}[{place}]", value)
    try:
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return
    if isinstance(attributes, dict):
        for key, value in list(attributes.items()):
            if type(value) not in ATOMS:
                yield Slot(attributes, key, f"{path}.{key}", value)


def share(obj: Any, *, least: int = LARGE) -> Any:
    """Give back `obj` with its large containers shared: lists and tuples as `SharedList`, dicts as `SharedDict`, arrays as `SharedArray`.

    A container itself is answered with the shared one. Any other object is changed in place: its attributes, and those of the
    objects that it holds. Only exact lists, tuples, dicts, numpy arrays and tensors of at least `least` bytes are replaced; a tensor stays
    a tensor, over shared memory.
    """
    if _is_large(obj, least):
        return _shared(obj)
    known: dict[int, Any] = {}
    keep: list[Any] = []
    for slot in slots(obj, "it"):
        if slot.holder is None or not _is_large(slot.value, least):
            continue
        if id(slot.value) not in known:
            keep.append(slot.value)  # its identity must not become another's
            known[id(slot.value)] = _shared(slot.value)
        slot.put(known[id(slot.value)])
    return obj


def _is_large(value: Any, least: int) -> bool:
    if is_array(value):
        return bool(value.nbytes >= least)
    if type(value) not in (list, tuple, dict) or len(value) < FEWEST or estimate(value) < least:
        return False
    # a few objects are looked into: it is their arrays that are large
    return len(value) > MOST_PARTS or is_plain(value) is None


def _shared(value: Any) -> Any:
    try:
        if not is_array(value):
            return SharedDict(value) if type(value) is dict else SharedList(value)
        shared = SharedArray(value)
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        # what cannot be pickled, or found in another process
        log.warning("share() leaves a %s of %d items alone: %s", type(value).__name__, len(value), error)
        return value
    return shared.tensor() if type(value).__name__ == "Tensor" else shared
