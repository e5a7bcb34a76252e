"""`rng="sample"`: the random numbers of a sample depend on the seed, the epoch and its index only.

Before each sample we seed the generators of torch, numpy and Python. Python's takes the longest, so we
seed it on first use: until then the `random` module's generator has a class whose methods seed it first.
Code that imported a function such as `random.random` earlier would bypass that; if there is any, we seed
each time.
"""

from __future__ import annotations

import _random
import functools
import random
import sys
import zlib
from typing import Any

import numpy as np
import torch

from unjam.system.random_state import isolated_random_state

_MASK = (1 << 64) - 1
# mixed with an index, so that sample 3, batch 3 and position 3 of a stream get different seeds
SAMPLE, BATCH, STREAM = 0, 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D


def mix(base: int, number: int) -> int:
    """Mix both arguments into 63 bits (splitmix64); a change of either one changes about half of the bits."""
    state = (base + number * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return (state ^ state >> 31) >> 1


def number_of_index(index: Any) -> int:
    """Return a number for an index, the same in every process and every run."""
    if type(index) is int:
        return index
    try:
        return int(index.__index__())
    except (AttributeError, TypeError):  # TypeError: an array with several elements
        text = repr(index).encode("utf-8", "backslashreplace")
        return zlib.crc32(text) | zlib.adler32(text) << 32


# the functions of `random` that access the state directly, bypassing methods of the generator's class
_DIRECT = ("random", "getrandbits", "seed", "getstate", "setstate")


class SampleRandom:
    """Seeds the generators for each sample of one epoch."""

    def __init__(self, seed: int, epoch: int) -> None:
        self._base = mix(mix(0, seed), epoch)
        self._torch = torch.default_generator.manual_seed
        self._python = _LazyPython.shared()

    def seed_sample(self, index: Any) -> None:
        """Seed for a sample of a map-style dataset."""
        self._seed(mix(self._base + SAMPLE, number_of_index(index)))

    def seed_batch(self, number: int) -> None:
        """Seed for code that handles a whole batch: `collate_fn`, `__getitems__`."""
        self._seed(mix(self._base + BATCH, number))

    def seed_stream(self, worker: int, position: int) -> None:
        """Seed for the next sample of a worker's stream."""
        self._seed(mix(mix(self._base + STREAM, worker), position))

    def _seed(self, seed: int) -> None:
        self._torch(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the generator that datasets use
        self._python.seed_later(seed)


def seed_generators(seed: int) -> None:
    """Seed for one batch, so that its random numbers do not depend on which worker makes it."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - as above


def batch_seed(base: int, epoch: int, number: int) -> int:
    """Return a batch's seed, well mixed so that neighbours differ strongly."""
    mixed = (base + epoch * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
    mixed = (mixed ^ mixed >> 31) * 0x94D049BB133111EB & (1 << 64) - 1
    return mixed >> 1


def replay_sample(dataset: Any, index: Any, seed: int | None, epoch: int) -> Any:
    """Load a sample as a worker did in that epoch; `seed`: None if random numbers depend on the worker."""
    if seed is None:
        return dataset[index]
    with isolated_random_state():
        SampleRandom(seed, epoch).seed_sample(index)
        return dataset[index]


class _LazyPython:
    """Python's own generator, seeded on first use."""

    _one: _LazyPython | None = None

    @classmethod
    def shared(cls) -> _LazyPython:
        """Return the only instance of this process."""
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def __init__(self) -> None:
        self._owner: Any = random._inst  # noqa: SLF001 - the module's own generator
        self._usual = type(self._owner)
        self._pending = 0
        functions = {name: vars(random)[name] for name in _DIRECT}
        # five references: from the module, the dict, the list, the loop variable and the argument
        self._at_once = self._usual is not random.Random or any(
            sys.getrefcount(one) > 5 for one in list(functions.values())
        )
        if not self._at_once:
            self._waiting = _waiting_class(self)
            for name, usual in functions.items():
                setattr(random, name, _seeding_first(self, usual))

    def seed_later(self, seed: int) -> None:
        """Seed the generator before its next use."""
        self._pending = seed
        if self._at_once:
            self.seed_now()
        else:
            self._owner.gauss_next = None
            self._owner.__class__ = self._waiting

    def seed_now(self) -> None:
        """Seed with the seed of the last `seed_later`."""
        owner = self._owner
        owner.__class__ = self._usual
        _random.Random.seed(owner, self._pending)
        owner.gauss_next = None

    def seed_if_pending(self) -> None:
        """Seed the generator, unless that is already done."""
        if type(self._owner) is not self._usual:
            self.seed_now()


def _waiting_class(lazy: _LazyPython) -> type[random.Random]:
    # A caller may keep one of these bound methods and call it after the generator was seeded.
    class Random(random.Random):
        """Seeds itself on first use."""

        __slots__ = ()

        def random(self) -> float:
            lazy.seed_if_pending()
            return _random.Random.random(self)

        def getrandbits(self, k: int, /) -> int:
            lazy.seed_if_pending()
            return _random.Random.getrandbits(self, k)

        def getstate(self) -> tuple[Any, ...]:
            lazy.seed_if_pending()
            return random.Random.getstate(self)

        def setstate(self, state: tuple[Any, ...]) -> None:
            lazy.seed_if_pending()  # otherwise the next use would overwrite this state
            random.Random.setstate(self, state)

    return Random


def _seeding_first(lazy: _LazyPython, usual: Any) -> Any:
    """Return a function that seeds before it calls one of `_DIRECT`."""

    @functools.wraps(usual)
    def call(*args: Any, **kwargs: Any) -> Any:
        lazy.seed_if_pending()
        return usual(*args, **kwargs)

    # pickle finds it by its name
    call.__module__, call.__qualname__ = "random", usual.__name__
    return call
