"""A batch that has arrived in the training process, and what is known of it before it is opened."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from unjam.loader.transport.leases import Leases
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker.job import SampleFailure, unpack_failures
from unjam.system.memory import MemoryMapping


@dataclass(slots=True)
class BatchReport:
    """What is known of a batch without opening it. The bytes are decoded on demand.

    times: the timestamps of `BatchJob`. packed_failures: its failed samples, or their records.
    position_update: see `WorkerPosition.after`.
    """

    samples: int = 0
    nbytes: int = 0
    times: bytes = b""
    packed_failures: bytes | Sequence[SampleFailure] = b""
    profile: bytes = b""
    position_update: bytes = b""
    # called for each failure; a cluster notes the node
    annotate: Callable[[SampleFailure], None] | None = None

    def failures(self) -> list[SampleFailure]:
        """Return the failed samples."""
        packed = self.packed_failures
        found = unpack_failures(packed) if isinstance(packed, bytes) else list(packed)
        if self.annotate is not None:
            for failure in found:
                self.annotate(failure)
        return found


class BatchResult(Protocol):
    """A batch that has arrived, or the failures in its place. It is opened or refused once.

    raises: it raises the last of its failures. empty: every sample failed and was skipped. while_loading: the failure is that
    a worker could not rebuild the dataset. pinned: its tensors are in pinned memory.
    """

    report: BatchReport
    raises: bool = False
    empty: bool = False
    while_loading: bool = False
    pinned: bool = False

    @property
    def ready(self) -> bool:
        """Whether opening it would not wait."""
        return True

    @property
    def memory(self) -> MemoryMapping | None:
        """The slot that the batch lies in, if it does."""
        return None

    def open(self, *, copy: bool) -> Any:
        """Return the batch. `copy`: do not use recycled memory."""
        return self.open_with_owner(copy=copy)[0]

    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        """Return the batch, and the owner of its memory: that is free when the owner and all tensors in it are gone."""

    def refuse(self) -> None:
        """Give its memory back unopened."""


class ReceivedBatch(BatchResult):
    """A batch from a worker of this machine, in a slot or in the message."""

    def __init__(self, packed: PackedBatch, leases: Leases) -> None:
        self._packed = packed
        self._leases = leases
        # set while the slot is borrowed and the batch is not unpacked yet: a signal handler may raise
        self._owner: Any = None
        self._spent = False
        self.report = report_of(packed)

    @property
    @override
    def memory(self) -> MemoryMapping | None:
        return None if self._packed.filling is None else self._leases.mapping(self._packed.filling.slot)

    @override
    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        filling = self._packed.filling
        if self._owner is not None:
            pass  # an earlier call was interrupted
        elif filling is None:
            self._owner = bytearray(self._packed.data)
        elif copy:
            self._owner = self._leases.copy_of(filling.slot, filling.used)
        else:
            self._owner = self._leases.borrow(filling.slot, filling.generation)
        if filling is not None and isinstance(self._owner, bytearray):
            # only when the copy is stored: an interrupted call must not copy again from a slot with other content
            self._leases.refuse(filling.slot, filling.generation)
        opened = (self._packed.unpack(self._owner), self._owner)
        self._owner, self._spent = None, True
        return opened

    def relay(self) -> tuple[PackedBatch, Any, Any]:
        """Return the batch and its bytes for another process, and the owner of the bytes."""
        filling = self._packed.filling
        if filling is None:
            return self._packed.without_slot(), self._packed.data, None
        owner = self._leases.borrow(filling.slot, filling.generation)
        self._spent = True
        return self._packed.without_slot(), pickle.PickleBuffer(memoryview(owner).cast("B")[: filling.used]), owner

    @override
    def refuse(self) -> None:
        filling = self._packed.filling
        if filling is not None and not self._spent:
            self._spent = True
            self._leases.refuse(filling.slot, filling.generation)


class FailedBatch(BatchResult):
    """The failures in place of a batch: it raises the last one, or is empty because all samples were skipped."""

    def __init__(self, report: BatchReport, *, raises: bool, while_loading: bool = False) -> None:
        self.report = report
        self.raises = raises
        self.empty = not raises
        self.while_loading = while_loading

    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        """Raise: there is nothing to open."""
        del copy
        raise AssertionError("a failed batch was opened")

    def refuse(self) -> None:
        """Do nothing: it holds no memory."""


def report_of(packed: PackedBatch) -> BatchReport:
    """Return what a packed batch says about itself."""
    return BatchReport(
        packed.samples, packed.nbytes, packed.times, packed.failures, packed.profile, packed.position_update
    )
