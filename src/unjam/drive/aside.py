"""Random numbers of a batch that is made in the training process, beside the training's own.

What `numpy.random` holds takes longer to put away and back than a tiny batch takes to make. So it is watched instead, at the memory
that it counts in: where the first batches drew nothing from it, it is left alone; the first batch that does is made once more,
with numbers of its own.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from unjam.worker.spec import seed_batch

# batches for which numpy's numbers are put away whatever happens
CLOSELY = 8
# the state of the Mersenne Twister: 624 words and a place
STATE_BYTES = 625 * 4


class Aside:
    """Makes things with random numbers of their own."""

    def __init__(self) -> None:
        self._numpy_draws = False
        self._seen = 0

    def make(self, seed: int, work: Callable[[], Any]) -> Any:
        """Do some work, seeded; afterwards the process's own random numbers are where they were. `work` may be called twice."""
        again = False
        python, own = random.getstate(), torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        address = None if numpy is None else _address(numpy)
        whole = numpy is not None and (self._numpy_draws or self._seen < CLOSELY or address is None)
        kept = numpy.random.get_state() if whole and numpy is not None else None
        try:
            seed_batch(seed, numpy=whole)
            before = None if address is None else ctypes.string_at(address, STATE_BYTES)
            done = work()
            if address is not None and before is not None and ctypes.string_at(address, STATE_BYTES) != before:
                self._numpy_draws = True
                again = not whole
                if again:
                    ctypes.memmove(address, before, STATE_BYTES)
            self._seen += 1
        finally:
            random.setstate(python)
            torch.set_rng_state(own)
            if kept is not None and numpy is not None:
                numpy.random.set_state(kept)
        return self.make(seed, work) if again else done


def _address(numpy: Any) -> int | None:
    """Where numpy's global generator counts, if it is the usual one."""
    try:
        generator = numpy.random.get_bit_generator()
        return int(generator.ctypes.state_address) if type(generator).__name__ == "MT19937" else None
    except AttributeError:
        return None  # before numpy 1.24
