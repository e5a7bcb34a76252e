"""`rng="sample"`: the random numbers of a sample depend on the seed, the epoch and its index only.

Before each sample the generators of torch, numpy and Python are seeded. Python's takes the longest, so
it is seeded when it is used: until then the module's generator has a class whose methods seed it first.
Code that took `random.random` out of the module before we came would not notice; if there is any, we
seed each time.
"""

from __future__ import annotations

import _random
import functools
import random
import sys
import zlib
from typing import Any

import torch

from unjam.system import random_state

_MASK = (1 << 64) - 1
# what an index is mixed with, so that sample 3, batch 3 and position 3 of a stream differ
SAMPLE, BATCH, STREAM = 0, 0x5851F42D4C957F2D, 0x2545F4914F6CDD1D


def mixed(base: int, number: int) -> int:
    """Return 63 bits, of which a change of either argument changes about half (splitmix64)."""
    state = (base + number * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return (state ^ state >> 31) >> 1


def number_of(index: Any) -> int:
    """Return a number for an index: the same in every process and every run."""
    if type(index) is int:
        return index
    try:
        return int(index.__index__())
    except AttributeError:
        text = repr(index).encode("utf-8", "backslashreplace")
        return zlib.crc32(text) | zlib.adler32(text) << 32


# the functions of `random` that read or write the state without looking at the generator's class
_DIRECT = ("random", "getrandbits", "seed", "getstate", "setstate")


class SampleRandom:
    """Seeds the generators for each sample of one epoch."""

    def __init__(self, seed: int, epoch: int) -> None:
        self._base = mixed(mixed(0, seed), epoch)
        self._torch = torch.default_generator.manual_seed
        self._python = _LazyPython.shared()

    def sample(self, index: Any) -> None:
        """Seed for a sample of a map-style dataset."""
        self._seed(mixed(self._base + SAMPLE, number_of(index)))

    def batch(self, number: int) -> None:
        """Seed for what belongs to a whole batch: `collate_fn`, `__getitems__`."""
        self._seed(mixed(self._base + BATCH, number))

    def streamed(self, worker: int, position: int) -> None:
        """Seed for the next sample of a worker's stream."""
        self._seed(mixed(mixed(self._base + STREAM, worker), position))

    def _seed(self, seed: int) -> None:
        self._torch(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        self._python.seed_later(seed)


def replay_sample(dataset: Any, index: Any, seed: int | None, epoch: int) -> Any:
    """Load a sample as a worker of that epoch did; `seed`: None if the random numbers were the worker's."""
    if seed is None:
        return dataset[index]
    before = random_state.capture()
    try:
        SampleRandom(seed, epoch).sample(index)
        return dataset[index]
    finally:
        random_state.restore(before)


class _LazyPython:
    """Python's own generator, seeded when it is used."""

    _one: _LazyPython | None = None

    @classmethod
    def shared(cls) -> _LazyPython:
        """Return the only one of this process."""
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def __init__(self) -> None:
        self._owner: Any = random._inst  # noqa: SLF001 - the module's own generator
        self._usual = type(self._owner)
        self._pending = 0
        taken = {name: getattr(random, name) for name in _DIRECT}
        # five references: the module's, the dictionary's, the list's, the loop's and the argument's
        self._at_once = self._usual is not random.Random or any(
            sys.getrefcount(one) > 5 for one in list(taken.values())
        )
        if not self._at_once:
            self._waiting = _waiting_class(self)
            for name, usual in taken.items():
                setattr(random, name, _first(self, usual))

    def seed_later(self, seed: int) -> None:
        """Seed before the next use."""
        self._pending = seed
        if self._at_once:
            self.seed_now()
        else:
            self._owner.gauss_next = None
            self._owner.__class__ = self._waiting

    def seed_now(self) -> None:
        """Seed as `seed_later` said."""
        owner = self._owner
        owner.__class__ = self._usual
        _random.Random.seed(owner, self._pending)
        owner.gauss_next = None

    def seed_once(self) -> None:
        """Seed, if that is still to be done."""
        if type(self._owner) is not self._usual:
            self.seed_now()


def _waiting_class(lazy: _LazyPython) -> type[random.Random]:
    # A caller may keep one of these methods: it is called again after the generator was seeded.
    class Random(random.Random):
        """Seeds itself before it gives a number."""

        __slots__ = ()

        def random(self) -> float:
            lazy.seed_once()
            return _random.Random.random(self)

        def getrandbits(self, k: int, /) -> int:
            lazy.seed_once()
            return _random.Random.getrandbits(self, k)

        def getstate(self) -> tuple[Any, ...]:
            lazy.seed_once()
            return random.Random.getstate(self)

        def setstate(self, state: tuple[Any, ...]) -> None:
            lazy.seed_once()  # or the next use would seed it over this state
            random.Random.setstate(self, state)

    return Random


def _first(lazy: _LazyPython, usual: Any) -> Any:
    """Return a function that seeds before it calls one of `_DIRECT`."""

    @functools.wraps(usual)
    def call(*args: Any, **kwargs: Any) -> Any:
        lazy.seed_once()
        return usual(*args, **kwargs)

    # pickle finds it by its name
    call.__module__, call.__qualname__ = "random", usual.__name__
    return call
