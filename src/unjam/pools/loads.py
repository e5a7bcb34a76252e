"""What arrives from a worker: a batch over its slot, a batch in the message, or an exception."""

from __future__ import annotations

import pickle
from typing import Any

from unjam.transport.leases import Leases
from unjam.transport.unpacking import unpack
from unjam.worker.exceptions import ExceptionRecord
from unjam.worker.messages import Made


class BatchLoad:
    """A packed batch. Opened or refused, once."""

    def __init__(self, made: Made, data: bytes, leases: Leases) -> None:
        self._made = made
        self._data = data
        self._leases = leases

    def open(self, *, copy: bool) -> Any:
        """The batch."""
        made, filling = self._made, self._made.filling
        owner: Any
        if filling is None:
            owner = bytearray(self._data)
        elif copy:
            owner = self._leases.copy_out(filling.slot, filling.generation, filling.used)
        else:
            owner = self._leases.borrow(filling.slot, filling.generation)
        return unpack(made.stream, made.stream_at, made.buffers, owner)

    def refuse(self) -> None:
        """Give the slot back."""
        filling = self._made.filling
        if filling is not None:
            self._leases.refuse(filling.slot, filling.generation)


class FailureLoad:
    """An exception that takes a batch's place."""

    def __init__(self, data: bytes, *, loading: bool = False) -> None:
        self._data = data
        self.loading = loading

    def open(self, *, copy: bool) -> Any:
        """Raise it."""
        del copy
        taken: ExceptionRecord = pickle.loads(self._data)
        raise taken.restore()

    def refuse(self) -> None:
        """Nothing is held."""
