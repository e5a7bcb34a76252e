"""What each message from a worker means for the driver."""

from __future__ import annotations

import pickle
from typing import Any

from unjam.loader.engine import events as ev
from unjam.loader.pool.batch_result import BatchReport, FailedBatch, ReceivedBatch
from unjam.loader.pool.protocol import PoolEvent, Question
from unjam.loader.pool.worker_handle import WorkerHandle, post
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.channel import Frame
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker import messages


def event_of(worker: Any, frame: Frame, reports: WorkerReports) -> PoolEvent | None:
    """Return the event that a message means, other than a batch; None if the driver does not need it.

    worker: what is known of the worker: a `WorkerHandle`, or a `RemoteWorker` of a cluster.
    """
    match frame.message:
        case messages.BatchFailed(batch, while_loading, update):
            failed = FailedBatch(
                BatchReport(packed_failures=frame.data, position_update=update),
                raises=True,
                while_loading=while_loading,
            )
            if batch is None:
                return ev.Unready(worker.number, result=failed)
            return ev.Failure(worker.number, batch, result=failed)
        case messages.BatchEmpty(batch, update):
            return ev.Result(worker.number, batch, result=_empty(frame, update))
        case messages.Exhausted(batch, cut_short, update):
            return ev.Exhausted(worker.number, batch, cut_short=cut_short, result=_empty(frame, update))
        case messages.PolicyQuestion(batch):
            return Question(worker.number, batch, pickle.loads(frame.data))
        case messages.Ready(at, initialised):
            worker.prepared, worker.ready_at = True, at - initialised
            return ev.Ready(worker.number)
        case messages.Reread(samples, seconds):
            reports.reread(samples, seconds)
        case messages.Imported():
            reports.imported |= dict.fromkeys(bytes(frame.data).decode().split("\n"))
        case messages.WarnOnce():
            reports.warn_once(bytes(frame.data).decode())
        case unknown:
            raise AssertionError(f"unknown message from a worker: {unknown!r}")
    return None


def local_event_of(handle: WorkerHandle, frame: Frame, reports: WorkerReports) -> PoolEvent | None:
    """Return the event that a message of a worker on this machine means: also batches, and the slots that they lie in."""
    match frame.message:
        case PackedBatch() as packed:
            for slot in packed.retired:
                handle.leases.retire(slot)
            filling = packed.filling
            if filling is not None and filling.slot in handle.unmapped:
                handle.without_memory[filling.slot, filling.generation] = packed
                post(handle, messages.SendSlotBytes(filling.slot, filling.generation))
                return None
            packed.data = frame.data
            return received(handle, packed)
        case messages.SlotBytes(slot, generation):
            return received(handle, handle.without_memory.pop((slot, generation)).without_slot(frame.data))
        case messages.Goodbye():
            handle.said_goodbye = True
            return None
        case messages.NewSlot(slot, size):
            try:
                if frame.fds_lost:
                    raise OSError("no descriptor left")
                handle.leases.add(slot, size, frame.fds[0])
            except OSError:
                handle.unmapped.add(slot)
            return None
    return event_of(handle, frame, reports)


def received(handle: WorkerHandle, packed: PackedBatch) -> ev.Result:
    """Return the event of a batch that has arrived."""
    return ev.Result(handle.number, packed.batch, packed.nbytes, result=ReceivedBatch(packed, handle.leases))


def _empty(frame: Frame, update: bytes) -> FailedBatch:
    return FailedBatch(BatchReport(packed_failures=frame.data, position_update=update), raises=False)
