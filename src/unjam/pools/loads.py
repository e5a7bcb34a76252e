"""What arrives from a worker: a batch over its slot, a batch in the message, or the reason why there is none."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from unjam.pools.protocol import Facts
from unjam.transport.leases import Leases
from unjam.transport.unpacking import unpack
from unjam.worker.job import Failed, failures_from
from unjam.worker.messages import Made


class BatchLoad:
    """A packed batch. Opened or refused, once."""

    raises = empty = loading = False

    def __init__(self, made: Made, data: bytes, leases: Leases) -> None:
        self._made = made
        self._data = data
        self._leases = leases
        # between the loan of a slot and the batch over it, where a signal handler may raise
        self._owner: Any = None
        self._spent = False

    @property
    def facts(self) -> Facts:
        """See `Load`."""
        made = self._made
        return Facts(made.samples, made.nbytes, made.times, made.failures, None, made.profile)

    def open(self, *, copy: bool) -> Any:
        """The batch."""
        made, filling = self._made, self._made.filling
        if self._owner is not None:
            pass  # opened before, and interrupted
        elif filling is None:
            self._owner = bytearray(self._data)
        elif copy:
            self._owner = self._leases.copy_out(filling.slot, filling.generation, filling.used)
        else:
            self._owner = self._leases.borrow(filling.slot, filling.generation)
        batch = unpack(made.stream, made.stream_at, made.buffers, self._owner)
        self._owner, self._spent = None, True
        return batch

    def refuse(self) -> None:
        """Give the slot back."""
        filling = self._made.filling
        if filling is not None and not self._spent:
            self._spent = True
            self._leases.refuse(filling.slot, filling.generation)


class Missing:
    """No batch, and why: it raises the last of its failures, or every sample was skipped and it is empty."""

    def __init__(self, failures: list[Failed] | bytes, *, raises: bool, loading: bool = False) -> None:
        self._failures = failures
        self.raises = raises
        self.empty = not raises
        self.loading = loading

    @property
    def facts(self) -> Facts:
        """See `Load`."""
        return Facts(listed=failures_from(self._failures) if isinstance(self._failures, bytes) else self._failures)

    def open(self, *, copy: bool) -> Any:
        """There is nothing to open."""
        del copy
        raise AssertionError("a batch that is missing was opened")

    def refuse(self) -> None:
        """Nothing is held."""


def dump_index(index: Any) -> bytes:
    """Indices are nearly always numbers; anything else may be of a class of `__main__`."""
    if type(index) is int or (type(index) is list and set(map(type, index)) == {int}):
        return pickle.dumps(index, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(index)
    return data
