"""The agent of a node: an ordinary pool of processes, and a thread that carries out the parent's orders.

It knows nothing of Ray. See NOTE [ Workers on a cluster ].
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from unjam.deadlines import NODE_CLOSE, STALL_CHECK
from unjam.errors import CannotStartError
from unjam.loader.cluster import node_messages as msg
from unjam.loader.cluster.node_copy import node_copy
from unjam.loader.cluster.waker import Waker
from unjam.loader.engine.events import Death, Result
from unjam.loader.pool.batch_result import ReceivedBatch
from unjam.loader.pool.open_pool import open_shipped
from unjam.loader.pool.pool_request import PayloadCache
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.worker_handle import WorkerHandle
from unjam.loader.pool.worker_messages import local_event_of
from unjam.loader.ship import shipping
from unjam.loader.ship.process_state import ProcessState
from unjam.loader.transport.channel import Frame
from unjam.loader.transport.status_page import Stage
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker import messages
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.proc_files import read_text
from unjam.system.waiting import Waiting
from unjam.version import __version__

# a reply ends when its batches have this many bytes: the next one is made while it travels
REPLY_BYTES = 64 << 20
# If the last reply was sent less than BUSY seconds ago, the next one waits LINGER seconds for more messages, unless it has
# LARGE bytes already: a reply takes the parent a millisecond, whatever it holds.
BUSY, LINGER, LARGE = 0.01, 0.003, 1 << 20
# seconds between two reports of what the workers do
STATES_EVERY = 0.25
# messages that the agent's own pool needs: slots and their bytes
_OF_THE_POOL = (PackedBatch, messages.NewSlot, messages.SlotBytes, messages.Imported, messages.Goodbye)


def version() -> tuple[str, str]:
    """The versions that must be the same on all machines."""
    return __version__, ".".join(map(str, sys.version_info[:2]))


def boot_id() -> str:
    """A name for the machine since it was started: processes with the same one have the same clock."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


class RelayPool(ProcessPool):
    """Passes on most messages as they are: the parent reads them."""

    def _event_of(self, handle: WorkerHandle, frame: Frame) -> Any:
        message = frame.message
        if isinstance(message, _OF_THE_POOL):
            return local_event_of(handle, frame, self._reports)
        if isinstance(message, messages.Ready):
            handle.prepared = True
        return msg.FromWorker(handle.number, message, bytes(frame.data))

    def states(self) -> dict[int, msg.WorkerState]:
        """What each worker does."""
        return {
            number: msg.WorkerState(handle.process.pid, handle.page.read(), self.suspended(number))
            for number, handle in list(self._handles.items())
        }

    def set_specs(self, specs: tuple[WorkerSpec, ...]) -> None:
        """Use these settings for workers that start from now on."""
        for spec in specs:
            self._specs[spec.worker] = spec


class NodeAgent:
    """Workers of one loader on one node. `content`: returns the bytes of the dataset."""

    def __init__(self, shipment: msg.Shipment, content: Callable[[], Any], specs: list[WorkerSpec]) -> None:
        self._shipment, self._content, self._specs = shipment, content, specs
        self._boot_id = boot_id()
        self._pool: RelayPool | None = None
        self._orders: deque[msg.Order] = deque()
        self._outbox: deque[Any] = deque()
        self._changed = threading.Condition()
        self._held: list[Any] = []  # slots of the last reply, which is being sent
        self._states_sent = self._replied = 0.0
        self._problem = ""
        self._closing = False
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="unjam-agent", daemon=True)
        self._thread.start()

    # -- called by the parent ----------------------------------------------------------------------

    def tell(self, orders: list[msg.Order]) -> None:
        """Take orders; they are carried out in their order."""
        self._orders.extend(orders)
        self._waker.wake()

    def poll(self, seconds: float) -> msg.Reply:
        """Return what happened; wait at most `seconds` for the first event."""
        self._held.clear()
        with self._changed:
            if not self._outbox and not self._problem:
                self._changed.wait(seconds)
            if time.monotonic() - self._replied < BUSY and not self._large():
                self._changed.wait_for(self._large, LINGER)  # small batches in quick succession travel together
        events, size = [], 0
        while self._outbox and size < REPLY_BYTES:
            one = self._outbox.popleft()
            if isinstance(one, Result):
                size += one.nbytes
                one = self._relay(one)
            events.append(one)
        self._replied = time.monotonic()
        return msg.Reply(time.monotonic_ns(), self._boot_id, tuple(events), self._states(), self._problem)

    def _large(self) -> bool:
        return sum(one.nbytes for one in self._outbox if isinstance(one, Result)) >= LARGE

    def stack(self, worker: int) -> str:
        """Return a worker's stack."""
        return "" if self._pool is None else self._pool.stack(worker)

    def state(self, worker: int) -> msg.WorkerState | None:
        """Return what a worker does now."""
        return None if self._pool is None else self._pool.states().get(worker)

    def waits_for(self, worker: int) -> Waiting | None:
        """Return what a worker waits for."""
        return None if self._pool is None else self._pool.waits_for(worker)

    def attempt(self, payload: tuple[Any, shipping.Manifest]) -> str:
        """Rebuild an object here; return the error, or nothing."""
        content, manifest = payload
        try:
            received = shipping.Payload.received(content, manifest)
            shipping.receive(received.fd, manifest, [])
        except Exception as error:  # noqa: BLE001 - the caller tells it
            return f"{type(error).__name__}: {error}"
        return ""

    def close(self) -> None:
        """End all workers."""
        self._closing = True
        self._waker.wake()
        self._thread.join(NODE_CLOSE.seconds)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._pool = self._open()
        except BaseException as error:  # noqa: BLE001 - the parent tells it
            self._fail(error)
            return
        pool = self._pool
        pool.wake_on(self._waker.fd)
        try:
            while not self._closing:
                self._carry_out(pool)
                pool.wait(STALL_CHECK.seconds)
                self._waker.drain()
                self._post(pool)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            pool.close()

    def _open(self) -> RelayPool:
        theirs, here = self._shipment.version, version()
        if theirs != here:
            raise CannotStartError(
                f"the training has unjam {theirs[0]} on Python {theirs[1]}, this node has unjam {here[0]} on Python {here[1]}"
            )
        _settle(self._shipment.state)
        shipment = self._shipment
        fd, mapping = node_copy(shipment.digest, shipment.manifest, self._content)
        payload = shipping.Payload(fd, shipment.manifest, mapping, [], shipment.modules, shipment.own, shipment.runs)
        pool = open_shipped(self._specs, PayloadCache(payload=payload), kind=RelayPool)
        assert isinstance(pool, RelayPool), "made with this kind"
        return pool

    def _carry_out(self, pool: RelayPool) -> None:
        while self._orders:
            order = self._orders.popleft()
            match order:
                case msg.StartWorkers(specs):
                    pool.set_specs(specs)
                    pool.start(
                        [spec.worker for spec in specs], {spec.worker: spec.start_at for spec in specs if spec.start_at}
                    )
                case msg.SendRequest(worker, request):
                    pool.send(worker, request)
                case msg.BeginEpoch(shared_seed, epoch):
                    pool.begin_epoch(shared_seed, epoch)
                case msg.StopWorker(worker, reason):
                    pool.stop(worker, reason)
                case msg.AnswerWorker(worker, decision):
                    pool.answer(worker, decision)
                case msg.ContinueWorker(worker):
                    pool.continue_worker(worker)

    def _post(self, pool: RelayPool) -> None:
        """Put what the workers sent where `poll` finds it."""
        came: list[Any] = []
        while pool.arrivals:
            one: Any = pool.arrivals.popleft()
            if isinstance(one, Death):
                last_exit = pool.last_exit(one.worker)
                assert last_exit is not None, "a death without an exit"
                one = msg.WorkerGone(one, last_exit)
            came.append(one)
        if came:
            with self._changed:
                self._outbox.extend(came)
                self._changed.notify_all()

    def _relay(self, event: Result) -> msg.FromWorker:
        """Return a batch for the parent; its slot is held until the next reply."""
        assert isinstance(event.result, ReceivedBatch), "only batches are read here"
        packed, data, owner = event.result.relay()
        self._held.append(owner)
        return msg.FromWorker(event.worker, packed, data)

    def _states(self) -> dict[int, msg.WorkerState] | None:
        now = time.monotonic()
        if self._pool is None or now - self._states_sent < STATES_EVERY:
            return None
        self._states_sent = now
        # one whose batch waits here for its turn is not idle
        sending = {one.worker for one in list(self._outbox) if isinstance(one, Result)}
        return {
            number: dataclasses.replace(one, heartbeat=dataclasses.replace(one.heartbeat, stage=Stage.SEND))
            if number in sending and one.heartbeat.stage is Stage.IDLE
            else one
            for number, one in self._pool.states().items()
        }

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._problem = f"{type(error).__name__}: {error}"
            self._changed.notify_all()


def _settle(theirs: ProcessState) -> None:
    """Take over the training's process state, as far as it makes sense on another machine."""
    here = ProcessState()
    there = [entry for entry in theirs.path if entry and os.path.exists(entry) and entry not in here.path]
    directory = theirs.directory if theirs.directory is not None and os.path.isdir(theirs.directory) else here.directory
    dataclasses.replace(
        theirs,
        environ=here.environ,
        directory=directory,
        path=[*here.path, *there],
        umask=here.umask,
        affinity=here.affinity,
        log_handlers=[one for one in theirs.log_handlers if not one.is_file],
        authkey=here.authkey,
        parent_name=here.parent_name,
        parent_pid=os.getpid(),
    ).apply_to_program("the agent")
    torch.set_num_threads(1)
