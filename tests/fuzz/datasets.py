"""Dataset classes: in this module, made by a function, and in `__main__` as a script has them."""

from __future__ import annotations

import collections
import random
import sys
import threading
from collections import OrderedDict, namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fuzz.leaves import LEAVES, Box
from fuzz.parts import SETTING, make_error

Pair = namedtuple("Pair", ["left", "right"])


class OwnMapping(collections.abc.Mapping):
    def __init__(self, *args, **named):
        self.held = dict(*args, **named)

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class OwnSequence(collections.abc.Sequence):
    def __init__(self, held):
        self.held = list(held)

    def __getitem__(self, place):
        return self.held[place]

    def __len__(self):
        return len(self.held)


class OwnList(list):
    pass


class OwnDict(dict):
    pass


STRUCTURES = {
    "bare": lambda parts: parts[0],
    "tuple": tuple,
    "list": list,
    "dict": lambda parts: {f"k{place}": part for place, part in enumerate(parts)},
    "odd keys": lambda parts: {(place, None): part for place, part in enumerate(parts)},
    "ordered": lambda parts: OrderedDict((f"k{place}", part) for place, part in reversed(list(enumerate(parts)))),
    "namedtuple": lambda parts: Pair(parts[0], parts[-1]),
    "mapping": lambda parts: OwnMapping(a=parts[0], b=parts[-1]),
    "sequence": OwnSequence,
    "own list": OwnList,
    "own dict": lambda parts: OwnDict(a=parts[0], b=parts[-1]),
    "nested": lambda parts: {
        "a": [parts[0], (parts[-1], {"b": Pair(parts[0], [parts[-1]])})],
        "c": OrderedDict(d=parts),
    },
    "dataclass": lambda parts: Box(len(parts), parts[0]),
}


class Content:
    """What every dataset here knows: how to make the sample with a number."""

    def __init__(self, data, failure=None):
        self.data, self.failure = data, failure
        self.epoch = 0
        self.names = [f"sample-{number}.png" for number in range(data.length)]
        self.jitter = (lambda number: number * 2 + 1) if data.lambdas else None
        self.extra = _extra(data.extra)

    def sample(self, number):
        failure = self.failure
        if failure is not None and failure.place == "getitem" and number == failure.at:
            raise make_error(failure.kind, f"from sample {number}")
        if self.jitter is not None:
            number = self.jitter(number)
        ragged = self.data.ragged if number == 2 else ""
        if ragged == "none":
            return None
        parts = [LEAVES[name](number + 100 * self.epoch, self.data.size) for name in self.data.leaves]
        if ragged == "shape":
            parts[0] = torch.ones(2, 3)
        elif ragged == "dtype":
            parts[0] = parts[0].to(torch.int16) if isinstance(parts[0], torch.Tensor) else "word"
        elif ragged == "longer":
            parts = [*parts, *parts]
        made = STRUCTURES[self.data.structure](parts)
        return (made, *self.noise(number)) if self.data.noisy else made

    def noise(self, number):
        """What depends on the worker, its seed and what was drawn there before."""
        info = get_worker_info()
        told = [-1, -1, -1] if info is None else [info.id, info.num_workers, info.seed]
        drawn = [random.random(), np.random.rand(2), torch.rand(2), int(torch.randint(0, 99, ()))]
        return number, [str(one) for one in told], drawn, str(SETTING["value"]), self.names[number % len(self.names)]

    def length_or_error(self):
        if self.failure is not None and self.failure.place == "len":
            raise make_error(self.failure.kind, "from len")
        return self.data.length


def _extra(name):
    """What else a dataset may hold."""
    return {
        "": lambda: None,
        "array": lambda: np.arange(30000.0),
        "tensor": lambda: torch.arange(30000.0),
        "shared tensor": lambda: torch.arange(3000.0).share_memory_(),
        "lock": threading.Lock,
        "local": threading.local,
        "generator": lambda: (one for one in range(3)),
        "cycle": _cycle,
        "numpy generator": lambda: np.random.default_rng(3),
        "torch generator": lambda: torch.Generator().manual_seed(3),
        "random": lambda: random.Random(3),
        "long list": lambda: [f"annotation {number}" for number in range(20000)],
        "long dict": lambda: {number: {"box": [number, 2]} for number in range(3000)},
        "module": lambda: sys,
    }[name]()


EXTRAS = (
    "array", "tensor", "shared tensor", "lock", "local", "generator", "cycle", "numpy generator", "torch generator", "random",
    "long list", "long dict", "module",
)  # fmt: skip
# what torch cannot send to workers by spawn and forkserver
UNSENDABLE = ("lock", "local", "generator", "module")


def _cycle():
    one = {"name": "loop"}
    one["self"] = one
    return one


def _draw(extra):
    """Use what the dataset holds: a generator's next number, a number of an array."""
    if isinstance(extra, np.random.Generator):
        return float(extra.random())
    if isinstance(extra, torch.Generator):
        return float(torch.rand((), generator=extra))
    if isinstance(extra, random.Random):
        return extra.random()
    if isinstance(extra, (np.ndarray, torch.Tensor)):
        return float(extra[7] + extra[-1])
    if isinstance(extra, list):
        return extra[-1] + str(len(extra)) + str(type(extra).__name__)
    if isinstance(extra, dict) and 7 in extra:
        return str(extra[7]) + str(isinstance(extra, dict))
    return None


class Rows(Content, Dataset):
    """Map-style."""

    def __len__(self):
        return self.length_or_error()

    def __getitem__(self, index):
        if isinstance(index, tuple):
            index = index[0]
        index = int(index)
        if not 0 <= index < self.data.length:
            raise IndexError(f"no sample {index}")
        made = self.sample(index)
        drawn = _draw(self.extra)
        return made if drawn is None else (made, drawn)


class Bulk(Rows):
    """Map-style, with `__getitems__`."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class BulkOdd(Rows):
    """Map-style; `__getitems__` gives a tuple, in reverse order."""

    def __getitems__(self, indices):
        return tuple(self[index] for index in reversed(indices))


class Stream(Content, IterableDataset):
    """Iterable; each worker has its part, and of `uneven` ones the first has more."""

    def __len__(self):
        return self.length_or_error()

    def __iter__(self):
        if self.failure is not None and self.failure.place == "iter":
            raise make_error(self.failure.kind, "from iter")
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.data.kind == "uneven" and info is not None:
            numbers = range(self.data.length if worker == 0 else worker)
        else:
            numbers = range(worker, self.data.length, workers)
        return self.walk(numbers)

    def walk(self, numbers):
        for number in numbers:
            yield self.sample(number)


class Walker(Stream):
    """Iterable; its iterator is a class with `__next__`, which goes on after an exception."""

    def walk(self, numbers):
        return _Walk(self, iter(numbers))


class _Walk:
    def __init__(self, stream, numbers):
        self.stream, self.numbers = stream, numbers

    def __iter__(self):
        return self

    def __next__(self):
        return self.stream.sample(next(self.numbers))


class NoLengthStream(Stream):
    """Iterable without a length."""

    __len__ = None


CLASSES = {
    "map": Rows,
    "bulk": Bulk,
    "bulk odd": BulkOdd,
    "iterable": Stream,
    "uneven": Stream,
    "walker": Walker,
    "no length": NoLengthStream,
}


def make(data, failure):
    """The dataset that `data` describes."""
    if data.kind in ("iterdatapipe", "mapdatapipe"):
        return _pipe(data, failure)
    kind = CLASSES[data.kind]
    if data.where == "local":

        class Local(kind):
            def sample(self, number):
                return super().sample(number)

        kind = Local
    elif data.where == "script":
        kind = _script_class(kind)
    return kind(data, failure)


def _script_class(kind):
    """A class of `__main__`, as in the user's script."""
    text = "class ScriptDataset(kind):\n    def sample(self, number):\n        return super().sample(number)\n"
    main = sys.modules["__main__"].__dict__
    main["kind"] = kind
    exec(compile(text, "script.py", "exec"), main)
    return main["ScriptDataset"]


def _pipe(data, failure):
    from torch.utils.data.datapipes.iter import IterableWrapper
    from torch.utils.data.datapipes.map import SequenceWrapper

    content = Content(data, failure)
    numbers = list(range(data.length))
    if data.kind == "mapdatapipe":
        return SequenceWrapper(numbers).map(content.sample)
    return IterableWrapper(numbers).shuffle().sharding_filter().map(content.sample)
