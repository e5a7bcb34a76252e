"""Samplers, collate functions, worker_init functions and exceptions, by name."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

# set by a worker_init function, read by samples
SETTING = {"value": "unset"}


class TwoArguments(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first, self.second = first, second


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")
        self.code = code


class OwnWords(Exception):
    def __str__(self):
        return f"own words of {self.args}"


class HoldsLock(Exception):
    def __init__(self, text):
        super().__init__(text, threading.Lock())
        self.lock = threading.Lock()


def make_error(kind: str, text: str) -> BaseException:
    """An exception of that kind, whose words contain `text`."""
    if kind == "local":

        class Local(Exception):
            pass

        return Local(text)
    made = {
        "value": lambda: ValueError(text),
        "key": lambda: KeyError(text),
        "os": lambda: OSError(2, text),
        "index": lambda: IndexError(text),
        "runtime many": lambda: RuntimeError(text, 3, [4]),
        "no words": lambda: AssertionError(),
        "two arguments": lambda: TwoArguments(text, 2),
        "keyword only": lambda: KeywordOnly(code=text),
        "own words": lambda: OwnWords(text),
        "unpicklable": lambda: HoldsLock(text),
        "stop iteration": lambda: StopIteration(text),
        "system exit": lambda: SystemExit(text),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
        "memory": lambda: MemoryError(text),
        "not implemented": lambda: NotImplementedError(text),
    }
    return made[kind]()


ERRORS = (
    "value", "key", "os", "index", "runtime many", "no words", "two arguments", "keyword only", "own words", "local",
    "unicode", "memory", "not implemented", "stop iteration", "system exit", "unpicklable",
)  # fmt: skip


class EveryOther(Sampler):
    """A sampler of the user's, that draws numbers in this process."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        start = random.randrange(2)
        return iter(range(start, self.length, 2))

    def __len__(self):
        return self.length // 2


class NoLength:
    """Only iterable, and yields numpy integers."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for index in range(self.length):
            yield np.int64(index)


class GrowingBatches:
    """A batch sampler of the user's: 1, 2, 3, 4, 1, 2, ... indices."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        index, size = 0, 1
        while index < self.length:
            yield list(range(index, min(self.length, index + size)))
            index += size
            size = size % 4 + 1

    def __len__(self):
        return 3


class Failing:
    """Any sampler, until it fails."""

    def __init__(self, inner, failure):
        self.inner, self.failure = inner, failure

    def __iter__(self):
        for number, one in enumerate(self.inner):
            if number == self.failure.at:
                raise make_error(self.failure.kind, "from the sampler")
            yield one

    def __len__(self):
        return len(self.inner)


SAMPLERS = {
    "sequential": lambda n: SequentialSampler(range(n)),
    "random": lambda n: RandomSampler(range(n)),
    "random replacement": lambda n: RandomSampler(range(n), replacement=True, num_samples=n + 3),
    "random generator": lambda n: RandomSampler(range(n), generator=torch.Generator().manual_seed(5)),
    "weighted": lambda n: WeightedRandomSampler([float(1 + i % 3) for i in range(n)], n),
    "subset": lambda n: SubsetRandomSampler(list(range(0, n, 2))),
    "every other": EveryOther,
    "no length": NoLength,
    "list": lambda n: list(reversed(range(n))),
    "repeated": lambda n: [0, 0, n - 1, 0],
    "numpy": lambda n: np.arange(n)[::-1],
    "tensor": lambda n: torch.arange(n),
    "words": lambda n: [str(i) for i in range(n)],
    "tuples": lambda n: [(i, i + 1) for i in range(n)],
    "out of range": lambda n: [0, 1, n + 2, 0, 1],
}
BATCH_SAMPLERS = {
    "torch": lambda n: BatchSampler(SequentialSampler(range(n)), 3, drop_last=False),
    "torch drop": lambda n: BatchSampler(RandomSampler(range(n)), 4, drop_last=True),
    "growing": GrowingBatches,
    "list": lambda n: [[0], list(range(n)), [n - 1, 0]],
    "empty batch": lambda n: [[0], [], [n - 1]],
    "tuples": lambda n: [(0, n - 1), (1 % n,)],
    "tensors": lambda n: list(torch.arange(n).split(3)),
}


# -- collate functions -------------------------------------------------------------------------------------------------


class Collated:
    """What a collate function of the user's may return; pin_memory is called by torch where it pins."""

    def __init__(self, samples):
        self.samples = samples
        self.count = torch.tensor(len(samples)) if isinstance(samples, list) else None

    def pin_memory(self):
        return self


def _worker():
    info = get_worker_info()
    return -1 if info is None else info.id


def identity(samples):
    return samples


def with_arrays(samples):
    many = samples if isinstance(samples, list) else [samples]
    return {"count": np.full((40, 50), len(many), dtype=np.int16), "worker": np.int32(_worker()), "samples": samples}


def with_views(samples):
    many = len(samples) if isinstance(samples, list) else 1
    base = torch.arange(6000.0).reshape(60, 100) * many
    return base.t(), base[::2, 3:], base[3], torch.stack([base, base]).transpose(0, 2)


def custom_class(samples):
    return Collated(samples)


def default_of_all(samples):
    return default_collate(samples), _worker()


def draws(samples):
    return samples, random.random(), np.random.rand(2), torch.rand(2)


def changes_samples(samples):
    if isinstance(samples, list):
        samples.reverse()
        samples.append("added")
    return samples


def returns_none(samples):
    return None


def unpicklable(samples):
    return threading.Lock()


def setting_too(samples):
    return samples, SETTING["value"], torch.initial_seed() if _worker() >= 0 else 0


def raises_at(failure, collate, samples):
    """Raises at its call with that number in this process, and goes on after it."""
    SETTING["calls"] = SETTING.get("calls", 0) + 1
    if SETTING["calls"] == failure.at + 1:
        raise make_error(failure.kind, "from collate")
    return collate(samples)


COLLATES = {
    "identity": identity,
    "arrays": with_arrays,
    "views": with_views,
    "custom class": custom_class,
    "default": default_of_all,
    "draws": draws,
    "changes samples": changes_samples,
    "none": returns_none,
    "setting": setting_too,
    "unpicklable": unpicklable,
}


def collate_of(name: str):
    """A collate function; those named lambda and closure are made anew, by code of a function."""
    if name == "lambda":
        return lambda samples: samples
    if name == "closure":
        kept = {"calls": 0}

        def collate(samples):
            kept["calls"] += 1
            return samples, kept["calls"] if _worker() >= 0 else 0

        return collate
    return COLLATES[name]


# -- worker_init functions ---------------------------------------------------------------------------------------------


def sets_global(worker):
    SETTING["value"] = f"set by {worker}"


def seeds(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


def draws_numbers(worker):
    SETTING["value"] = [random.random(), float(np.random.rand()), float(torch.rand(()))]


def changes_dataset(worker):
    get_worker_info().dataset.epoch = 100 + worker


def raises_init(failure, worker):
    if worker >= failure.at % 2:
        raise make_error(failure.kind, "from init")


INITS = {"sets global": sets_global, "seeds": seeds, "draws": draws_numbers, "changes dataset": changes_dataset}


def init_of(name: str):
    if name == "lambda":
        return lambda worker: SETTING.update(value=f"lambda {worker}")
    return INITS[name]
