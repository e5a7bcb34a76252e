"""Describes a loader and its dataset as small facts to compare between epochs, loaders and processes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from unjam.doctor.check.inventory import names_in
from unjam.doctor.check.target.observer import length_of
from unjam.doctor.facts.digest import digest
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.source import class_place, file_of
from unjam.doctor.facts.trial import Place
from unjam.system.by_identity import ByIdentity
from unjam.system.file_owner import is_users
from unjam.system.random_state import state_of

MOST_ITEMS = 20_000
MOST_ATTRIBUTES = 60
DEEPEST = 4
OBJECT, NOTHING = "object ", "nothing"
SPREAD = 32  # items of a list of large objects that are hashed
# calls that draw random numbers, in the source of a sampler
_RANDOM = {
    "randperm", "rand", "randint", "shuffle", "permutation", "permuted", "default_rng", "Random", "sample", "choice",
    "choices", "multinomial", "RandomState", "random", "manual_seed", "Generator", "normal", "integers",
}  # fmt: skip


composed_at: ByIdentity[Place] = ByIdentity()  # where the program made a Subset or a ConcatDataset


def plain_index(index: Any) -> Any:
    """An index as JSON can hold it: an int, or a hash of anything else."""
    if isinstance(index, int):
        return int(index)
    try:
        return int(index.__index__())
    except Exception:  # noqa: BLE001 - no number
        return f"{zlib.crc32(repr(index).encode()):x}"


def _attributes(obj: Any, most: int = MOST_ATTRIBUTES) -> list[tuple[str, Any]]:
    return list(itertools.islice(list(getattr(obj, "__dict__", {}).items()), most))


def nested_datasets(dataset: Any) -> Iterator[tuple[str, Any]]:
    """A dataset and the datasets inside it, each with its path."""
    waiting = [("dataset", dataset, 0)]
    seen: set[int] = set()
    while waiting:
        path, one, depth = waiting.pop(0)
        if id(one) in seen or depth > DEEPEST:
            continue
        seen.add(id(one))
        yield path, one
        for name, value in _attributes(one):
            if _is_dataset(value):
                waiting.append((f"{path}.{name}", value, depth + 1))
            elif isinstance(value, (list, tuple)) and 0 < len(value) <= 16 and all(_is_dataset(v) for v in value):
                waiting += [(f"{path}.{name}[{at}]", v, depth + 1) for at, v in enumerate(value)]


def _is_dataset(value: Any) -> bool:
    if isinstance(value, (type, list, tuple, dict, str, bytes, set)) or value is None:
        return False
    kind = type(value)
    inner = any(base.__module__.startswith("torch.utils.data") for base in kind.__mro__)
    return inner and (hasattr(kind, "__getitem__") or hasattr(kind, "__iter__"))


def fingerprint(dataset: Any) -> dict[str, str]:
    """A hash of each attribute that a dataset and its transforms hold."""
    found: dict[str, str] = {}
    with contextlib.suppress(Exception):
        for path, one in nested_datasets(dataset):
            for name, value in _attributes(one):
                if _is_dataset(value):
                    continue
                if callable(value) and not hasattr(value, "dtype"):
                    for inner, part in _attributes(value, 20):
                        if not callable(part):
                            found[f"{path}.{name}.{inner}"] = hashed(part)
                else:
                    found[f"{path}.{name}"] = hashed(value) if _is_data(value) else f"{OBJECT}{type(value).__name__}"
    return found


def _is_data(value: Any) -> bool:
    """Whether a value is data, not a handle, lock or other object with behaviour."""
    plain = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, type(None), range)
    return (
        isinstance(value, plain)
        or hasattr(value, "dtype")
        or hasattr(value, "dtypes")
        or type(value).__module__ == "pathlib"
    )


def hashed(value: Any) -> str:
    """A hash of a value, prefixed with its length if it has one."""
    if value is None:
        return NOTHING
    if isinstance(value, (list, tuple)) and len(value) > SPREAD:
        if isinstance(value[0], (int, float, str, bool)):
            return f"{len(value)}:{zlib.crc32(repr(value[:MOST_ITEMS]).encode()):x}"
        step = len(value) // SPREAD
        return f"{len(value)}:{digest([value[at * step] for at in range(SPREAD)])[0]}"
    size = f"{len(value)}:" if isinstance(value, (list, dict, set)) else ""
    return size + digest(value)[0]


# -- the description of a loader -------------------------------------------------------------------


def describe(loader: Any, token: Callable[[Any], int]) -> LoaderDescription:
    """The facts of a loader that are compared with those of other loaders and processes."""
    dataset = loader.dataset
    base, mapped = _base(dataset)
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    inner = getattr(sampler, "sampler", sampler)
    from torch.utils.data import IterableDataset  # noqa: PLC0415 - imported by the program

    iterable = isinstance(dataset, IterableDataset)
    return LoaderDescription(
        kind=type(loader).__name__,
        dataset=type(dataset).__qualname__.rpartition(".")[2],
        base=type(base).__qualname__.rpartition(".")[2],
        home=_home(type(dataset)) or _home(type(base)),
        length=length_of(dataset),
        base_length=length_of(base),
        workers=loader.num_workers if isinstance(loader.num_workers, int) else 0,
        batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
        batched=loader.batch_sampler is not None,
        persistent=bool(loader.persistent_workers),
        iterable=iterable,
        sampler=type(inner).__name__,
        random=not iterable and _is_random(inner, sampler),
        replacement=bool(getattr(inner, "replacement", False)),
        draws=length_of(inner) if not iterable else None,
        batch_sampler=type(sampler).__name__ if sampler is not inner and is_users(file_of(type(sampler))) else "",
        sampler_file=next((file for one in (sampler, inner) if is_users(file := file_of(type(one)))), ""),
        weighted=_is_weighted(inner),
        weights=length_of(getattr(inner, "weights", None)),
        has_generator=loader.generator is not None or getattr(inner, "generator", None) is not None,
        stateful=any(hasattr(one, "state_dict") for one in (loader, dataset, sampler, inner)),
        set_epoch=any(hasattr(one, "set_epoch") for one in (inner, sampler)),
        drop_last=bool(getattr(loader, "drop_last", False) or getattr(sampler, "drop_last", False)),
        tokens=_tokens(loader, base, inner, token),
        subset=mapped,
        items=_items(base, _identifies),
        records=_items(base, _is_record),
        maps=_label_maps(base),
        rows=[
            f"dataset.{name}" if base is dataset else name
            for name, value in _attributes(base)
            if length_of(base) and length_of(value) == length_of(base)
        ],
        per_sample=[path for path, one in nested_datasets(dataset) for path in _per_sample_arrays(path, one)],
        proxies=[
            f"{path}.{name}"
            for path, one in nested_datasets(dataset)
            for name, value in _attributes(one)
            if type(value).__module__ == "multiprocessing.managers"
        ],
        plain=_scalars(dataset),
        stale=_changed_lengths(dataset),
        composed={path: place for path, one in nested_datasets(dataset) if (place := composed_at.get(one)) is not None},
        transforms={path: name for path, name, _ in transforms(dataset)},
        reads=sorted(_attributes_read(dataset)),
    )


def _scalars(dataset: Any) -> list[str]:
    """The attributes that hold a single value: a number, a text, a tensor of one element."""
    found = []
    for path, one in nested_datasets(dataset):
        for name, value in _attributes(one):
            with contextlib.suppress(Exception):
                single = value.numel() == 1 if hasattr(value, "numel") else getattr(value, "size", 0) == 1
                if isinstance(value, (bool, int, float, complex, str, type(None))) or single:
                    found.append(f"{path}.{name}")
    return found


def _changed_lengths(dataset: Any) -> list[tuple[str, int, int]]:
    """The parts of concatenations and subsets whose length has changed since these were made: path, then, now."""
    found = []
    for path, one in nested_datasets(dataset):
        with contextlib.suppress(Exception):
            members, ends = getattr(one, "datasets", None), getattr(one, "cumulative_sizes", None)
            if members and ends and len(members) == len(ends):
                then = [end - start for start, end in zip([0, *ends], ends, strict=False)]
                found += [
                    (f"{path}.datasets[{at}]", size, len(member))
                    for at, (size, member) in enumerate(zip(then, members, strict=True))
                    if size != len(member)
                ]
            indices, inner = getattr(one, "indices", None), getattr(one, "dataset", None)
            if indices is not None and inner is not None and len(indices):
                last = max(int(at) for at in itertools.islice(indices, MOST_ITEMS))
                if last >= len(inner):
                    found.append((f"{path}.dataset", last + 1, len(inner)))
    return found


def _home(kind: type) -> Place | None:
    place = class_place(kind)
    return place if place is not None and is_users(place.file) else None


def _is_weighted(sampler: Any) -> bool:
    """Whether a sampler has weights that differ."""
    weights = getattr(sampler, "weights", None)
    try:
        return weights is not None and len({float(one) for one in itertools.islice(weights, 1000)}) > 1
    except (TypeError, ValueError):
        return False


def _base(dataset: Any) -> tuple[Any, list[Any] | None]:
    """The dataset under wrappers with `.dataset` and `.indices`, and the base's index of each sample."""
    mapped: list[Any] | None = None
    for _ in range(DEEPEST):
        inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
        if inner is None or not (hasattr(inner, "__getitem__") or hasattr(inner, "__iter__")):
            break
        if indices is not None:
            try:
                own = [plain_index(one) for one in itertools.islice(indices, MOST_ITEMS)]
            except TypeError:
                break
            mapped = own if mapped is None else [own[at] for at in mapped if isinstance(at, int) and at < len(own)]
        dataset = inner
    return dataset, mapped


def _tokens(loader: Any, base: Any, sampler: Any, token: Callable[[Any], int]) -> dict[str, int]:
    """Numbers that identify the objects that two loaders may share."""
    wanted = {"dataset": loader.dataset, "base": base, "sampler": sampler}
    wanted |= {path: value for path, _, value in transforms(loader.dataset)}
    found = {}
    for name, value in wanted.items():
        if value is not None:
            with contextlib.suppress(TypeError):  # cannot be referred to weakly
                found[name] = token(value)
    return found


def generators(loader: Any) -> list[Any]:
    """The generators that a loader and its samplers hold, each once."""
    found: list[Any] = []
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    for owner in (loader, sampler, getattr(sampler, "sampler", None)):
        for _, value in _attributes(owner):
            if state_of(value) and not any(value is one for one in found):
                found.append(value)
    return found


def transforms(dataset: Any) -> Iterator[tuple[str, str, Any]]:
    """The callables that a dataset and its wrappers hold: path, name of the class or function, object."""
    for path, one in nested_datasets(dataset):
        for name, value in _attributes(one):
            if callable(value) and not isinstance(value, type) and not _is_dataset(value):
                shown = getattr(value, "__qualname__", None) or type(value).__qualname__
                yield f"{path}.{name}", shown.rpartition(".")[2], value


def _items(base: Any, is_usable: Callable[[Any], bool]) -> dict[str, list[int]]:
    """Hashes of the items of each sequence that has one item for each sample, if its first item is usable."""
    length = length_of(base)
    found: dict[str, list[int]] = {}
    if not length or length > MOST_ITEMS:
        return found
    for name, value in _attributes_and_columns(base):
        if isinstance(value, (str, bytes, dict, set)) or length_of(value) != length:
            continue
        with contextlib.suppress(Exception):
            if not is_usable(value[0]):
                continue
            hashes = [_item(value[at]) for at in range(length)]
            if len(set(hashes)) > 0.9 * length:  # labels do not identify samples
                found[name] = hashes
    return found


def _attributes_and_columns(base: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a dataset, and the arrays in its short tuples and lists, as in a TensorDataset."""
    for name, value in _attributes(base):
        yield name, value
        if isinstance(value, (tuple, list)) and 0 < len(value) <= MOST_COLUMNS:
            yield from ((f"{name}[{at}]", one) for at, one in enumerate(value) if hasattr(one, "dtype"))


MOST_COLUMNS = 8


def _per_sample_arrays(path: str, one: Any) -> list[str]:
    """The arrays of a dataset that have one entry for each sample."""
    length = length_of(one)
    return [
        f"{path}.{name}"
        for name, value in _attributes(one)
        if hasattr(value, "dtype")
        and getattr(value, "ndim", None)
        and length
        and length_of(value) == length
        and not (callable(getattr(value, "is_shared", None)) and value.is_shared())  # filled by all workers on purpose
    ]


RECORD = 3  # this many values together identify a sample


def _is_record(item: Any) -> bool:
    return _identifies(item) or (isinstance(item, (tuple, list, dict)) and len(item) >= RECORD)


def _identifies(item: Any) -> bool:
    """Whether an item identifies its sample: a name, or data. Numbers do not: they may be positions."""
    if isinstance(item, (str, bytes)) or type(item).__module__ == "pathlib":
        return True
    if isinstance(item, (tuple, list)):
        return any(_identifies(one) for one in item)
    if isinstance(item, dict):
        return any(_identifies(one) for one in item.values())
    return bool(getattr(item, "ndim", None)) and "float" in str(getattr(item, "dtype", ""))


def _label_maps(base: Any) -> dict[str, dict[str, int]]:
    """Tables that map names to numbers: dictionaries, and lists of distinct names."""
    found = {}
    for name, value in _attributes(base):
        if (
            not isinstance(value, (dict, list))
            or not 1 < len(value) <= 1000
            or not all(isinstance(k, str) for k in value)
        ):
            continue
        if isinstance(value, list) and len(value) == length_of(base):
            continue  # one for each sample
        table = value if isinstance(value, dict) else {one: at for at, one in enumerate(value)}
        if all(type(v) is int for v in table.values()) and len(set(table.values())) == len(value):
            found[name] = dict(table)
    return found


def _item(item: Any) -> int:
    if isinstance(item, (str, int, float, tuple)) or type(item).__module__ == "pathlib":
        return zlib.crc32(repr(item).encode())
    return int(digest(item)[0][:8], 16)


def _is_random(*samplers: Any) -> bool:
    """Whether a sampler's code draws random numbers."""
    for sampler in samplers:
        if type(sampler).__name__ in ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler"):
            return True
        if type(sampler).__name__ == "DistributedSampler":
            return bool(getattr(sampler, "shuffle", False))
        function = inspect.unwrap(getattr(type(sampler), "__iter__", len))
        code = getattr(function, "__code__", None)
        if code is not None and is_users(code.co_filename) and _RANDOM & set(_calls_of(sampler, code)):
            return True
    return False


def _calls_of(owner: Any, code: types.CodeType, depth: int = 0) -> Iterator[str]:
    """The names that a function uses, and those that the methods it calls use."""
    for name in names_in(code):
        yield name
        method = inspect.getattr_static(type(owner), name, None)
        if depth < 3 and isinstance(method, types.FunctionType):
            yield from _calls_of(owner, method.__code__, depth + 1)


@functools.cache
def _names_of_class(kind: Any) -> frozenset[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if not is_users(file_of(base)):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType) and name != "__init__":
                names |= set(names_in(function.__code__))
    return frozenset(names)


def _attributes_read(dataset: Any) -> set[str]:
    """Attributes of a dataset and its transforms that methods other than __init__ use."""
    objects = [*nested_datasets(dataset), *((path, value) for path, _, value in transforms(dataset))]
    return {
        f"{path}.{name}"
        for path, one in objects
        for name in getattr(one, "__dict__", {})
        if name in _names_of_class(type(one))  # type: ignore[arg-type] # classes are hashable
    }
