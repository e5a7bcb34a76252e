"""The random generators of a process: the global ones and those that the dataset holds.

Their states are recorded before a worker's first sample: two workers with equal states draw the
same numbers. After that, each sample gets a seed made from its index, so that the same sample can
be compared between trials.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any


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
        return {
            name: hashlib.blake2b(_state(one), digest_size=8).hexdigest() for name, one in self._generators().items()
        }

    def seed(self, number: int) -> None:
        """Seed every generator with a number."""
        for generator in self._generators().values():
            _seed(generator, number)

    def seed_own(self, number: int) -> None:
        """Seed only the generators that the dataset holds."""
        for generator in self._own.values():
            _seed(generator, number)

    def _generators(self) -> dict[str, Any]:
        # `random` has the functions of its own generator
        found: dict[str, Any] = {"random": random}
        if (numpy := sys.modules.get("numpy.random")) is not None:
            found["numpy.random"] = numpy.mtrand._rand  # noqa: SLF001 - used by numpy.random's functions
        if (torch := sys.modules.get("torch")) is not None:
            found["torch"] = torch.default_generator
        return found | self._own


def _state(generator: Any) -> bytes:
    if hasattr(generator, "getstate"):  # Python's
        _, numbers, gauss = generator.getstate()
        return hash(numbers).to_bytes(8, "little", signed=True) + repr(gauss).encode()
    if hasattr(generator, "manual_seed"):  # torch's
        return bytes(generator.get_state().numpy().tobytes())
    if hasattr(generator, "seed"):  # numpy's RandomState
        _, keys, *rest = generator.get_state()
        return bytes(keys.tobytes()) + repr(tuple(rest)).encode()
    return repr(generator.bit_generator.state).encode()


def _seed(generator: Any, number: int) -> None:
    if hasattr(generator, "getstate"):
        generator.seed(number)
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(number)
    elif hasattr(generator, "seed"):
        generator.seed(number % 2**32)
    else:
        generator.bit_generator.state = type(generator.bit_generator)(number).state
