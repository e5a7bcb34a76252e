"""What arrives from a worker: a batch in a slot, a batch in the message, or a failure."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from unjam.loader.engine import events as ev
from unjam.loader.pool.protocol import Arrival, Asked, Facts, Work
from unjam.loader.pool.worker_handle import WorkerHandle, post
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.channel import Envelope
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.unpacking import unpack
from unjam.loader.worker import messages
from unjam.loader.worker.job import Failed, failures_from
from unjam.loader.worker.messages import BatchMade
from unjam.system.memory import Mapping


class ArrivedBatch:
    """A packed batch. It is opened or refused once."""

    raises = empty = loading = False

    def __init__(self, made: BatchMade, data: bytes, leases: Leases) -> None:
        self._made = made
        self._data = data
        self._leases = leases
        # Set while the slot is borrowed and the batch not unpacked yet: a signal handler may raise.
        self._owner: Any = None
        self._spent = False

    @property
    def nbytes(self) -> int:
        """The size of the batch, in its slot and in the message."""
        return self._made.nbytes + len(self._data)

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        made = self._made
        return Facts(made.samples, self.nbytes, made.times, made.failures, None, made.profile, made.news)

    @property
    def memory(self) -> Mapping | None:
        """The slot that the batch lies in, if it does."""
        return None if self._made.filling is None else self._leases.mapping(self._made.filling.slot)

    def open(self, *, copy: bool) -> Any:
        """Unpack and return the batch."""
        return self.open_held(copy=copy)[0]

    def open_held(self, *, copy: bool) -> tuple[Any, Any]:
        """Return the batch, and what keeps its slot: the slot is free when that and all tensors in it are gone."""
        made, filling = self._made, self._made.filling
        if self._owner is not None:
            pass  # an earlier call was interrupted
        elif filling is None:
            self._owner = bytearray(self._data)
        elif copy:
            self._owner = self._leases.copy_out(filling.slot, filling.generation, filling.used)
        else:
            self._owner = self._leases.borrow(filling.slot, filling.generation)
        opened = (unpack(made.stream, made.stream_at, made.buffers, self._owner), self._owner)
        self._owner, self._spent = None, True
        return opened

    def relayed(self) -> tuple[BatchMade, Any, Any]:
        """Return the message and its bytes for another process, and what keeps the bytes: the slot is free without it."""
        filling = self._made.filling
        if filling is None:
            return self._made, self._data, None
        owner = self._leases.borrow(filling.slot, filling.generation)
        self._spent = True
        return self._made.without_slot(), pickle.PickleBuffer(memoryview(owner).cast("B")[: filling.used]), owner

    def refuse(self) -> None:
        """Give the slot back."""
        filling = self._made.filling
        if filling is not None and not self._spent:
            self._spent = True
            self._leases.refuse(filling.slot, filling.generation)


class FailedBatch:
    """A failed batch: it raises the last of its failures, or is empty because all were skipped."""

    def __init__(
        self, failures: list[Failed] | bytes, *, raises: bool, loading: bool = False, news: bytes = b""
    ) -> None:
        self._failures = failures
        self._news = news
        self.raises = raises
        self.empty = not raises
        self.loading = loading

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        failures = failures_from(self._failures) if isinstance(self._failures, bytes) else self._failures
        return Facts(listed=failures, news=self._news)

    def open(self, *, copy: bool) -> Any:
        """Raise: there is nothing to open."""
        del copy
        raise AssertionError("a batch that is missing was opened")

    def refuse(self) -> None:
        """Do nothing: no memory is held."""


def dump_index(index: Any) -> bytes:
    """Pickle indices. They are nearly always numbers; others may have a class of `__main__`."""
    if type(index) is int or (type(index) is list and set(map(type, index)) == {int}):
        return pickle.dumps(index, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(index)
    return data


def pack_index(work: Work) -> bytes:
    """Pickle a batch's indices and spares, once."""
    if work.packed is None:
        work.packed = dump_index((work.index, work.spares)) if work.spares else dump_index(work.index)
    return work.packed


def task_of(work: Work) -> messages.Task:
    """Return the message that goes with the packed indices."""
    return messages.Task(work.batch, work.number, bool(work.spares), work.decisions or None, work.seed)


def understand(handle: WorkerHandle, envelope: Envelope, reports: WorkerReports) -> Arrival | None:
    """Handle one message; return None if the driver does not need it."""
    message = envelope.message
    match message:
        case messages.BatchMade():
            return _made(handle, message, envelope.data)
        case messages.NewSlot(slot, size):
            _new_slot(handle, slot, size, envelope)
            return None
        case messages.Carried(slot, generation):
            made = handle.without_memory.pop((slot, generation))
            return _result(handle, made, ArrivedBatch(made.without_slot(), envelope.data, handle.leases))
        case messages.BatchRaised(batch, loading, news):
            event = ev.Unready(handle.number) if batch is None else ev.Failure(handle.number, batch)
            return Arrival(event, FailedBatch(envelope.data, raises=True, loading=loading, news=news))
        case messages.BatchEmpty(batch, news):
            return Arrival(ev.Result(handle.number, batch), FailedBatch(envelope.data, raises=False, news=news))
        case messages.PolicyQuestion(batch):
            return Arrival(Asked(handle.number, batch), FailedBatch([pickle.loads(envelope.data)], raises=False))
        case messages.Drained(batch, cut_short, news):
            end = ev.Exhausted(handle.number, batch, cut_short=cut_short)
            return Arrival(end, FailedBatch(envelope.data, raises=False, news=news))
        case messages.Skipped(samples, seconds):
            reports.skipped(samples, seconds)
            return None
        case messages.Prepared(at, initialised):
            handle.prepared, handle.ready_at = True, at - initialised
            return Arrival(ev.Ready(handle.number))
        case messages.Imported():
            reports.imported |= dict.fromkeys(bytes(envelope.data).decode().split("\n"))
            return None
        case messages.WarnOnce():
            reports.warn_once(bytes(envelope.data).decode())
            return None
        case messages.Leaving():
            handle.said_goodbye = True
            return Arrival(ev.Goodbye(handle.number))
    raise AssertionError(f"a worker said {message!r}")


def _made(handle: WorkerHandle, made: messages.BatchMade, data: bytes) -> Arrival | None:
    for slot in made.retired:
        handle.leases.retire(slot)
    filling = made.filling
    if filling is not None and filling.slot in handle.unmapped:
        handle.without_memory[filling.slot, filling.generation] = made
        post(handle, messages.Carry(filling.slot, filling.generation))
        return None
    return _result(handle, made, ArrivedBatch(made, data, handle.leases))


def _result(handle: WorkerHandle, made: messages.BatchMade, batch: ArrivedBatch) -> Arrival:
    return Arrival(ev.Result(handle.number, made.batch, batch.nbytes), batch)


def _new_slot(handle: WorkerHandle, slot: int, size: int, envelope: Envelope) -> None:
    try:
        if envelope.fds_lost:
            raise OSError("no descriptor left")
        handle.leases.add(slot, size, envelope.fds[0])
    except OSError:
        handle.unmapped.add(slot)
