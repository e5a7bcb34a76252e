"""The random numbers of a process: the global generators and those that the dataset holds.

Before the first sample of a worker their states are written down: two workers in one state draw the same numbers. After
that every sample is loaded from a seed made of its index, so that the same sample can be compared between trials.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

GLOBAL = ("random", "numpy.random", "torch")


def is_generator(obj: Any) -> bool:
    """Whether an object draws random numbers from a state of its own."""
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
        """A short name of each generator's state."""
        return {name: _name(read()) for name, read, _ in self._all()}

    def seed(self, number: int) -> None:
        """Set every generator to a state made of a number."""
        for _, _, write in self._all():
            write(number)

    def seed_own(self, number: int) -> None:
        """The dataset's own generators only."""
        for name, _, write in self._all():
            if name in self._own:
                write(number)

    def _all(self) -> list[tuple[str, Callable[[], bytes], Callable[[int], None]]]:
        found: list[tuple[str, Callable[[], bytes], Callable[[int], None]]] = [
            ("random", lambda: _python(random.getstate()), random.seed)
        ]
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            legacy = numpy.mtrand._rand  # noqa: SLF001 - the one behind numpy.random's functions
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


def _name(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=8).hexdigest()
