"""The parent's side of one agent: a thread polls it and another one sends orders.

A call of Ray takes nearly a millisecond. Orders that arrive in the meantime are sent with the next call.
"""

from __future__ import annotations

import array
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from unjam.deadlines import NODE_ANSWER, NODE_CLOSE, NODE_REPLY, NODE_SILENT, NODE_START, STALL_CHECK
from unjam.loader.cluster import node_messages as msg
from unjam.loader.cluster.node_agent import BUSY, LINGER, boot_id
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker import messages
from unjam.loader.worker.spec import WorkerSpec


class AgentLost(Exception):
    """The agent, or its node, is gone or does not answer; the text says which."""


class AgentCannotStart(AgentLost):
    """Nothing outside has ended the agent: it has no room, fails or takes too long to start."""


class Agent(Protocol):
    """An agent on another node. Only `poll` and `ask` wait."""

    def tell(self, orders: list[msg.Order]) -> None:
        """Send orders."""

    def poll(self, seconds: float, within: float) -> msg.Reply:
        """Ask for events; raise `AgentLost` if there is no answer within `within` seconds."""

    def ask(self, question: str, argument: Any, within: float) -> Any:
        """Call a method of the agent; raise `AgentLost` as above."""

    def close(self, within: float) -> None:
        """End its workers and the agent itself; wait for it at most `within` seconds."""


@dataclass(slots=True, eq=False)
class RemoteWorker:
    """What the parent knows of a worker on a node. Slots are the agent's business."""

    number: int
    prepared: bool = False
    ready_at: int = 0
    state: msg.WorkerState | None = None
    moves: bool = False


class NodeLink:
    """One agent and its workers. `room`: how many workers have a processor there. `wake`: called from the threads."""

    def __init__(self, agent: Agent, name: str, room: int, wake: Callable[[], None]) -> None:
        self.name, self.room = name, room
        self.workers: dict[int, RemoteWorker] = {}
        self.inbox: deque[msg.Reply] = deque()
        self.lost = ""
        self.answered = False  # whether the agent's pool was ever open
        self.failed = False  # the agent cannot work there; it was not ended from outside
        self._heard = time.monotonic()
        self._agent = agent
        self._wake = wake
        self._shift: int | None = None  # from the agent's clock to ours, nanoseconds
        self._closed = threading.Event()
        self._orders: deque[msg.Order] = deque()
        self._some = threading.Event()
        for task in (self._listen, self._send):
            threading.Thread(target=task, name=f"unjam-node-{name}", daemon=True).start()

    @property
    def free(self) -> int:
        """How many more workers have a processor there."""
        return self.room - len(self.workers)

    @property
    def is_quiet(self) -> bool:
        """Whether the agent has not answered for longer than it takes when nothing happens."""
        return time.monotonic() - self._heard > 4 * NODE_REPLY.seconds

    def tell(self, *orders: msg.Order) -> None:
        """Send orders to the agent; does not wait."""
        self._orders.extend(orders)
        self._some.set()

    def ask(self, question: str, argument: Any) -> Any:
        """Ask the agent; None if it does not answer in time."""
        try:
            return None if self.lost else self._agent.ask(question, argument, NODE_ANSWER.seconds)
        except AgentLost:
            return None

    def close(self) -> None:
        """End the agent."""
        self._closed.set()
        self._some.set()
        self._agent.close(NODE_CLOSE.seconds)

    def in_our_clock(self, reply: msg.Reply) -> msg.Reply:
        """Return a reply whose times are those of our clock."""
        shift = self._shift or 0
        if not shift:
            return reply
        states = reply.states
        if states is not None:
            states = {number: self.state_in_our_clock(one) for number, one in states.items()}
        return dataclasses.replace(
            reply, events=tuple(_shifted_event(one, shift) for one in reply.events), states=states
        )

    def state_in_our_clock(self, state: msg.WorkerState) -> msg.WorkerState:
        """Return a worker's state whose times are those of our clock."""
        return dataclasses.replace(state, heartbeat=_shifted(state.heartbeat, self._shift or 0))

    def _send(self) -> None:
        sent = 0.0
        while not self._closed.is_set() and not self.lost:
            if not self._some.wait(STALL_CHECK.seconds):
                continue
            if time.monotonic() - sent < BUSY:
                self._closed.wait(LINGER)  # orders in quick succession travel together
            self._some.clear()
            orders = []
            while self._orders:
                orders.append(self._orders.popleft())
            try:
                self._agent.tell(orders)
                sent = time.monotonic()
            except Exception as error:  # noqa: BLE001 - if this thread ended, the link would never count as lost
                self.lost = _reason(error)
                self._wake()

    def _listen(self) -> None:
        within = NODE_START.seconds
        while not self._closed.is_set():
            asked = time.monotonic_ns()
            try:
                reply = self._agent.poll(NODE_REPLY.seconds, within)
            except Exception as error:  # noqa: BLE001 - as in `_send`
                self.failed = isinstance(error, AgentCannotStart)
                self.lost = self.lost or _reason(error)
                break
            if self._shift is None:
                same = reply.boot_id and reply.boot_id == boot_id()
                self._shift = 0 if same else (asked + time.monotonic_ns()) // 2 - reply.now
            within = NODE_SILENT.seconds
            self.answered = self.answered or reply.states is not None
            self._heard = time.monotonic()
            self.inbox.append(reply)
            if reply.problem:
                self.failed, self.lost = True, reply.problem
                break
            self._wake()
        self._wake()


class Cluster(Protocol):
    """Where agents come from."""

    def grow(self, workers: int, links: list[NodeLink], specs: list[WorkerSpec], wake: Any) -> list[NodeLink]:
        """Start agents for so many more workers on nodes with room; perhaps for fewer, or none. May take seconds."""

    def lost(self, link: NodeLink) -> None:
        """A link is lost."""

    def why_no_room(self) -> str:
        """Say what the cluster lacks, after `grow` found nothing."""


def _reason(error: Exception) -> str:
    """Return why a link is lost; never empty."""
    return str(error) if isinstance(error, AgentLost) and str(error) else f"{type(error).__name__}: {error}"


def _shifted(heartbeat: Heartbeat, shift: int) -> Heartbeat:
    return dataclasses.replace(heartbeat, since=heartbeat.since + shift)


def _shifted_event(one: Any, shift: int) -> Any:
    if isinstance(one, msg.WorkerGone):
        last_exit = dataclasses.replace(one.exit, heartbeat=_shifted(one.exit.heartbeat, shift))
        return dataclasses.replace(one, exit=last_exit)
    message = one.message
    if isinstance(message, messages.Ready):
        return dataclasses.replace(one, message=dataclasses.replace(message, at=message.at + shift))
    if isinstance(message, PackedBatch):
        times = array.array("q", message.times)
        moved = array.array("q", [stamp + shift for stamp in times])
        return dataclasses.replace(one, message=dataclasses.replace(message, times=moved.tobytes()))
    return one


def unknown_heartbeat() -> Heartbeat:
    """The heartbeat of a worker of which nothing is known yet."""
    return Heartbeat(Stage.STARTING, -1, -1, time.monotonic_ns(), 0, armed=False)
