"""The random generators of a process: the global ones and those that the dataset holds.

Their states are recorded before a worker's first sample: two workers with equal states draw the
same numbers. After that, each sample gets a seed made from its index, so that the same sample can
be compared between trials.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

GLOBAL = ("random", "numpy.random", "torch")


def is_generator(obj: Any) -> bool:
    """Whether an object draws random numbers from its own state."""
    if isinstance(obj, (type, random.SystemRandom)):
        return False
    if isinstance(obj, random.Random):
        return True
    kind = type(obj)
    return (
        kind.__module__.startswith("numpy.random")
        and hasattr(kind, "random_sample" if hasattr(kind, "seed") else "integers")
    ) or (kind.__module__.startswith("torch") and kind.__name__ == "Generator")


class Randomness:
    """Every generator that this process can draw from, by name."""

    def __init__(self, own: dict[str, Any]) -> None:
        self._own = own

    def states(self) -> dict[str, str]:
        """A hash of each generator's state, by the generator's name."""
        return {name: _hash(read()) for name, read, _ in self._all()}

    def seed(self, number: int) -> None:
        """Seed every generator with a number."""
        for _, _, write in self._all():
            write(number)

    def seed_own(self, number: int) -> None:
        """Seed only the generators that the dataset holds."""
        for name, _, write in self._all():
            if name in self._own:
                write(number)

    def _all(self) -> list[tuple[str, Callable[[], bytes], Callable[[int], None]]]:
        found: list[tuple[str, Callable[[], bytes], Callable[[int], None]]] = [
            ("random", lambda: _python(random.getstate()), random.seed)
        ]
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            legacy = numpy.mtrand._rand  # noqa: SLF001 - used by numpy.random's functions
            found.append(("numpy.random", lambda: _numpy(legacy), lambda n: legacy.seed(n % 2**32)))
        torch = sys.modules.get("torch")
        if torch is not None:
            default = torch.default_generator
            found.append(("torch", lambda: _torch(default), default.manual_seed))
        for name, generator in self._own.items():
            found.append((name, *_access(generator)))
        return found


def _access(generator: Any) -> tuple[Callable[[], bytes], Callable[[int], None]]:
    if isinstance(generator, random.Random):
        return (lambda: _python(generator.getstate())), generator.seed
    if hasattr(generator, "manual_seed"):
        return (lambda: _torch(generator)), generator.manual_seed
    if hasattr(generator, "seed"):  # numpy's RandomState
        return (lambda: _numpy(generator)), (lambda n: generator.seed(n % 2**32))

    def write(number: int) -> None:
        generator.bit_generator.state = type(generator.bit_generator)(number).state

    return (lambda: repr(generator.bit_generator.state).encode()), write


def _python(state: Any) -> bytes:
    return hash(state[1]).to_bytes(8, "little", signed=True) + repr(state[2]).encode()


def _numpy(generator: Any) -> bytes:
    _, keys, place, has, cached = generator.get_state()
    return bytes(keys.tobytes()) + repr((place, has, cached)).encode()


def _torch(generator: Any) -> bytes:
    return bytes(generator.get_state().numpy().tobytes())


def _hash(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
