"""A pool whose workers run on the nodes of a cluster.

See NOTE [ Workers on a cluster ]. A worker that was started and has no node yet waits in `_waiting`,
together with its orders. A thread, the placer, asks the cluster for nodes; `wait` then gives each
worker a node: the one with most room, or if none has room, the one with the fewest workers for each
processor.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from unjam.deadlines import NODE_CLOSE, PLACEMENT_RETRY, REBALANCE, SIGKILL_GRACE
from unjam.errors import ClusterError
from unjam.loader.cluster import node_messages as msg
from unjam.loader.cluster.node_link import Cluster, NodeLink, RemoteWorker, unknown_heartbeat
from unjam.loader.cluster.remote_batch import HeldBatches, RemoteBatch, name_node
from unjam.loader.cluster.waker import Waker
from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Reason
from unjam.loader.pool.batch_result import FailedBatch
from unjam.loader.pool.pool_registry import living
from unjam.loader.pool.protocol import Pool, PoolEvent, Question, WorkerExit
from unjam.loader.pool.worker_exits import sample_of
from unjam.loader.pool.worker_messages import event_of
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.channel import Frame
from unjam.loader.transport.status_page import Heartbeat
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker import messages
from unjam.loader.worker.progress import WorkerPosition
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.logs import log
from unjam.system.waiting import Waiting


class ClusterPool(Pool):
    """Assigns workers to nodes; see NOTE [ Workers on a cluster ].

    may_move: a worker may be stopped to start again on a new node.
    """

    def __init__(
        self,
        cluster: Cluster,
        specs: list[WorkerSpec],
        reports: WorkerReports,
        patience: float,
        *,
        may_move: bool = True,
    ) -> None:
        self._cluster, self._specs, self._reports, self._patience = cluster, specs, reports, patience
        self._may_move = may_move
        self._owner_pid = os.getpid()
        self._links: list[NodeLink] = []
        self._closers: list[threading.Thread] = []
        self._at: dict[int, NodeLink] = {}
        self._waiting: dict[int, list[msg.Order]] = {}
        self._waiting_since = 0.0
        self._exits: dict[int, WorkerExit] = {}
        self._started: dict[int, int] = {}  # how often each worker was started
        self._sent: dict[int, tuple[int, int]] = {}  # by batch: the worker, and its number of starts, that have it
        self._held = HeldBatches()
        self.arrivals: deque[PoolEvent] = deque()
        self.processes: list[Any] = []
        self.closed = False
        self.made_in = 0
        self._launched = self._ready_at = 0
        self._waker = Waker()
        self._poller = select.poll()
        self._poller.register(self._waker.fd, select.POLLIN)
        self._placing = threading.Lock()
        self._placed: deque[list[NodeLink] | str] = deque()  # from the placer: new links, or why there are none
        self._placer_said = self._agent_failed = ""
        self._place_next = 0.0
        self._said_shared = False
        living.add(self)

    # -- the `Pool` protocol -----------------------------------------------------------------------

    @override
    def start(self, workers: list[int], positions: Mapping[int, WorkerPosition]) -> None:
        self._launched = self._launched or time.monotonic_ns()
        if not self._waiting:
            self._waiting_since = time.monotonic()
        for number in workers:
            if number not in self._at and number not in self._waiting:  # an action may be done twice
                spec = dataclasses.replace(self._specs[number], start_at=positions.get(number))
                self._waiting[number] = [msg.StartWorkers((spec,))]
                self._started[number] = self._started.get(number, 0) + 1
        self._place_next = 0.0
        self._place()

    @override
    def send(self, worker: int, request: messages.BatchRequest) -> None:
        target = (worker, self._started.get(worker, 0))
        if self._sent.get(request.batch) == target:
            return  # an action may be done twice, but an iterable yields its samples once
        self._sent[request.batch] = target
        request.sent_to = self.pid(worker) or worker + 1  # its process id may not be known yet
        request.pack()
        self._tell(worker, msg.SendRequest(worker, request))

    @override
    def begin_epoch(self, shared_seed: int | None, epoch: int) -> None:
        self._specs = [dataclasses.replace(spec, shared_seed=shared_seed, epoch=epoch) for spec in self._specs]
        self._sent.clear()
        self._waiting.clear()  # the engine starts them again, with this epoch's settings
        for link in self._links:
            link.tell(msg.BeginEpoch(shared_seed, epoch))

    @override
    def stop(self, worker: int, reason: Reason) -> None:
        if worker in self._waiting:
            self._exits[worker] = WorkerExit(worker, None, None, unknown_heartbeat(), said_goodbye=True)
            self.arrivals.append(ev.Death(worker))
            self._waiting.pop(worker, None)
        else:
            self._tell(worker, msg.StopWorker(worker, reason))

    @override
    def wait(self, seconds: float) -> None:
        seconds = self.collect(seconds)
        self._poller.poll(int(seconds * 1000))
        self.collect()

    def collect(self, seconds: float = 0.0) -> float:
        """Read what has arrived, without waiting; return how many of the `seconds` may pass before the next call."""
        self._waker.drain()
        self._read()
        self._place()
        if self.arrivals:
            return 0.0
        if self._waiting or any(link.lost for link in self._links):
            seconds = min(seconds, PLACEMENT_RETRY.seconds)
        return max(0.0, seconds)

    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable when something has arrived."""
        return self._waker.fd

    @override
    def answer(self, worker: int, decision: str) -> None:
        self._tell(worker, msg.AnswerWorker(worker, decision))

    @override
    def continue_worker(self, worker: int) -> None:
        self._tell(worker, msg.ContinueWorker(worker))

    @override
    def last_exit(self, worker: int) -> WorkerExit | None:
        return self._exits.get(worker)

    @override
    def heartbeat(self, worker: int) -> Heartbeat | None:
        link, state = self._at.get(worker), self._state(worker)
        # an old state says nothing about now: batches that take seconds may be on their way
        return None if link is None or state is None or link.is_quiet else state.heartbeat

    @override
    def pid(self, worker: int) -> int | None:
        state = self._state(worker)
        return None if state is None else state.pid

    @override
    def is_here(self, worker: int) -> bool:
        del worker
        return False

    @override
    def suspended(self, worker: int) -> bool:
        state = self._state(worker)
        return state is not None and state.suspended

    @override
    def stack(self, worker: int) -> str:
        link = self._at.get(worker)
        if link is None:
            return ""
        stack: str = link.ask("stack", worker) or ""
        now = link.ask("state", worker)  # the known state may be old
        if now is not None and worker in link.workers:
            link.workers[worker].state = link.state_in_our_clock(now)
        return stack

    @override
    def waits_for(self, worker: int) -> Waiting:
        link = self._at.get(worker)
        found = None if link is None else link.ask("waits_for", worker)
        return Waiting("unknown", "") if found is None else found

    @override
    def started_in(self) -> int:
        return self.made_in + max(0, self._ready_at - self._launched) if self._ready_at else 0

    @override
    def memory(self) -> tuple[int, int]:
        return self._held.nbytes, self._held.nbytes

    @override
    def held(self) -> int:
        return self._held.count

    @override
    def close(self) -> None:
        if self._owner_pid != os.getpid():
            self.forget()
            return
        if self.closed:
            return
        self.closed = True
        self.close_links()  # first: another Ctrl-C may come
        try:
            if self._placing.acquire(timeout=SIGKILL_GRACE.seconds):  # it may be starting an agent
                self._placing.release()
        finally:
            self._take_placed()
            self.close_links()
        for one in self._closers:
            one.join(2 * SIGKILL_GRACE.seconds + NODE_CLOSE.seconds)
        self._at.clear()
        self._waiting.clear()

    def close_links(self) -> None:
        """Begin to end the agents; `close` waits for them. Does nothing in a fork, which does not own them."""
        while self._links and self._owner_pid == os.getpid():
            self._closers.append(threading.Thread(target=self._links[-1].close, daemon=True))
            self._closers[-1].start()
            self._links.pop()

    def forget(self) -> None:
        """Do nothing with the agents; the parent owns them."""
        self.closed = True

    # -- workers and nodes -------------------------------------------------------------------------

    def _state(self, worker: int) -> msg.WorkerState | None:
        link = self._at.get(worker)
        return None if link is None else link.workers[worker].state

    def _tell(self, worker: int, order: msg.Order) -> None:
        link = self._at.get(worker)
        if link is not None:
            link.tell(order)
        elif worker in self._waiting:
            self._waiting[worker].append(order)

    def _place(self) -> None:
        """Give waiting workers a node; ask the cluster for more nodes if there is too little room."""
        answer = self._take_placed()
        links = [link for link in self._links if not link.lost]
        now = time.monotonic()
        waited = now - self._waiting_since if self._waiting else 0.0
        lack = len(self._waiting) - sum(max(0, link.free) for link in links)
        if links and self._waiting and (lack <= 0 or answer is not None or waited > PLACEMENT_RETRY.seconds):
            self._assign(links)
        elif not links and waited > self._patience:
            why = self._placer_said or self._agent_failed or self._cluster.why_no_room()
            raise ClusterError(f"no node of the cluster accepted a worker within {self._patience:g} s: {why}")
        # also workers that share a processor: there may be room for them now
        surplus = max(0, lack) + sum(max(0, -link.free) for link in links)
        if surplus and not self._waiting and self._may_move:
            self._spread(links)
        if surplus and now >= self._place_next and self._placing.acquire(blocking=False):
            if self._placed:  # it has just answered
                self._placing.release()
                return
            self._place_next = now + (PLACEMENT_RETRY if self._waiting else REBALANCE).seconds
            threading.Thread(target=self._grow, args=(surplus, links), name="unjam-placer", daemon=True).start()

    def _grow(self, workers: int, links: list[NodeLink]) -> None:
        """In the placer's thread: start agents."""
        try:
            found: list[NodeLink] | str = self._cluster.grow(workers, links, self._specs, self._waker.wake)
        except Exception as error:  # noqa: BLE001 - reported when patience is over
            found = f"{type(error).__name__}: {error}"
        self._placed.append(found)
        self._placing.release()
        self._waker.wake()
        if self.closed and not isinstance(found, str):  # the pool does not take them any more
            for link in found:
                link.close()

    def _take_placed(self) -> str | None:
        """Take new links from the placer; return None if it said nothing, else its words."""
        answer = None
        while self._placed:
            found = self._placed.popleft()
            answer = self._placer_said = found if isinstance(found, str) else ""
            if not isinstance(found, str):
                self._links += found
        return answer

    def _assign(self, links: list[NodeLink]) -> None:
        for worker in sorted(self._waiting):
            if worker not in self._at:  # an earlier call was interrupted
                link = max(links, key=lambda one: (one.free > 0, one.free / one.room))
                link.workers[worker] = RemoteWorker(worker)
                self._at[worker] = link
                link.tell(*self._waiting[worker])
                self._reports.set_worker_count(link.name, len(link.workers))
            self._waiting.pop(worker)
        if any(link.free < 0 for link in links) and not self._said_shared:
            self._said_shared = True
            room, all_of_them = sum(link.room for link in links), sum(len(link.workers) for link in links)
            log.warning(
                "the cluster has %d free processors for %d workers: some workers share a processor", room, all_of_them
            )

    def _spread(self, links: list[NodeLink]) -> None:
        """Let workers that share a processor start again on nodes that have room, such as those that have just come."""
        everyone = [worker for link in links for worker in link.workers.values()]
        room = sum(max(0, link.free) for link in links) - sum(worker.moves for worker in everyone)
        for link in links:
            for worker in list(link.workers.values())[link.room :]:
                if room > 0 and worker.prepared and not worker.moves and not self._specs[worker.number].iterable:
                    room -= 1
                    worker.moves = True
                    link.tell(msg.StopWorker(worker.number, Reason.MOVED))

    # -- what comes --------------------------------------------------------------------------------

    def _read(self) -> None:
        for link in list(self._links):
            while link.inbox:
                reply = link.in_our_clock(link.inbox[0])
                self._take(link, reply)
                link.inbox.popleft()
            if link.lost:
                self._lose(link)

    def _take(self, link: NodeLink, reply: msg.Reply) -> None:
        for number, state in (reply.states or {}).items():
            if number in link.workers:
                link.workers[number].state = state
        for one in reply.events:
            worker = link.workers.get(one.death.worker if isinstance(one, msg.WorkerGone) else one.worker)
            if worker is None:
                continue
            if isinstance(one, msg.WorkerGone):
                last_exit = dataclasses.replace(one.exit, node=link.name)
                # one that moves to another node is no incident
                self._exits[worker.number] = (
                    dataclasses.replace(last_exit, said_goodbye=True) if worker.moves else last_exit
                )
                # first: an exception of a signal handler must not lose a death
                if id(one.death) not in map(id, self.arrivals):
                    self.arrivals.append(one.death)
                del link.workers[worker.number]
                self._at.pop(worker.number, None)
                self._reports.set_worker_count(link.name, len(link.workers))
            else:
                event = self._event_of(link, worker, one)
                if event is not None:
                    self.arrivals.append(event)

    def _event_of(self, link: NodeLink, worker: RemoteWorker, one: msg.FromWorker) -> PoolEvent | None:
        if isinstance(one.message, PackedBatch):
            batch = RemoteBatch(one.message, one.data, self._held, link.name)
            self._reports.count_batch(link.name, batch.report)
            self._sent.pop(one.message.batch, None)
            return ev.Result(worker.number, one.message.batch, batch.report.nbytes, result=batch)
        event = event_of(worker, Frame(one.message, one.data), self._reports)
        self._ready_at = self._ready_at or worker.ready_at
        match event:
            case ev.Reported(result=FailedBatch() as failed):
                failed.report.annotate = functools.partial(name_node, node=link.name)
            case Question():
                name_node(event.failure, link.name)
        return event

    def _lose(self, link: NodeLink) -> None:
        """A node is gone: so are its workers."""
        for number, worker in list(link.workers.items()):
            state = worker.state
            self._exits[number] = WorkerExit(
                number,
                None if state is None else state.pid,
                None,
                unknown_heartbeat() if state is None else state.heartbeat,
                node=link.name,
                node_lost=link.lost,
            )
            on = sample_of(self._exits[number].heartbeat)
            cause = ev.Cause.UNKNOWN if link.failed else ev.Cause.MACHINE
            self.arrivals.append(ev.Death(number, *on, cause, prepared=link.answered and not link.failed))
            self._at.pop(number, None)
            del link.workers[number]
        if link.failed:
            self._agent_failed = f"the agent on node {link.name} cannot start: {link.lost}"
        self._links.remove(link)
        self._cluster.lost(link)
        self._reports.set_worker_count(link.name, 0)
        threading.Thread(target=link.close, daemon=True).start()
