"""What the parent holds of one living worker, and what it can see of it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from unjam.loader.engine.actions import Reason
from unjam.loader.engine.deadlines import GLANCE, TAKE_STACK, Deadline
from unjam.loader.transport.channel import MOST_FDS, Channel, ChannelClosed
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.status_page import Page, Stage
from unjam.loader.worker import main, messages
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.memory import Mapping, OwnedFd


@dataclass(slots=True)
class Hand:
    """What the parent holds of one living worker."""

    number: int
    process: Any
    channel: Channel
    page: Page
    stacks: Mapping
    leases: Leases
    sentinel: int
    said_farewell: bool = False
    prepared: bool = False
    # when it had its dataset, in nanoseconds of the machine's clock; 0: not yet
    ready_at: int = 0
    stop_reason: Reason | None = None
    killed_at: float | None = None
    stack_read: int = 0
    # where a profile is wanted: the worker's own descriptor of its stacks, to begin anew
    stacks_fd: OwnedFd | None = None
    # batches whose slot this process could not map, until their bytes come through the channel
    without_memory: dict[tuple[int, int], messages.Made] = field(default_factory=dict)
    unmapped: set[int] = field(default_factory=set)

    def written(self) -> str:
        """What the worker's fault handler has written since the last look."""
        data = bytes(self.stacks.view()[self.stack_read :])
        end = data.find(b"\0")
        text = data if end < 0 else data[:end]
        self.stack_read += len(text)
        return text.decode("utf-8", "replace")


def post(hand: Hand, message: object, data: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    """Say something to a worker. A channel that breaks belongs to one that is gone: its sentinel says so."""
    with contextlib.suppress(ChannelClosed, OSError):
        if not hand.channel.closed:
            hand.channel.post(message, data, fds)


def glance(hand: Hand) -> tuple[Stage, str] | None:
    """What a worker is about and its stack at this moment, if it is at work; quick, and it may miss."""
    beat = hand.page.read()
    if beat.stage in (Stage.IDLE, Stage.LEAVING) or not beat.armed or hand.stacks_fd is None:
        return None
    if not _catches(hand.process.pid):
        return None
    hand.written()  # what was read before is not part of it
    if hand.stack_read > main.STACKS_BYTES // 2:
        hand.stacks.view()[:] = bytes(main.STACKS_BYTES)
        os.lseek(hand.stacks_fd, 0, os.SEEK_SET)
        hand.stack_read = 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(hand.process.pid, main.STACK_SIGNAL)
    # a worker that has no processor at this moment answers when it has one: not to wait for it would leave out those that compute
    return beat.stage, _await_text(hand, GLANCE, 0.001)


class BeginFrame:
    """Makes the first frame for each worker of a pool."""

    def __init__(self, home: Any, payload: Any, tracker: int | None, *, adopted: bool) -> None:
        """`payload`: None where the worker has the cargo already. `home`: None where it was forked from this process."""
        self._home = home
        self._payload = payload
        self._tracker = tracker
        self._adopted = adopted

    def frame(self, spec: WorkerSpec) -> tuple[messages.Begin, tuple[int, ...]]:
        """The message and its descriptors, after the page and the stacks."""
        if self._payload is None:
            return messages.Begin(spec, self._home, None, has_tracker=False, adopted=self._adopted), ()
        fds = (self._payload.fd, *((self._tracker,) if self._tracker is not None else ()), *self._payload.extra_fds)
        begin = messages.Begin(
            spec,
            self._home,
            self._payload.manifest,
            has_tracker=self._tracker is not None,
            adopted=self._adopted,
        )
        return begin, fds


def introduce(channel: Channel, message: object, fds: tuple[int, ...]) -> None:
    """Send the first frame, with as many descriptors as it takes."""
    rest = list(fds)
    while len(rest) > MOST_FDS:
        channel.post(messages.Descriptors(), fds=rest[:MOST_FDS])
        del rest[:MOST_FDS]
    channel.post(message, fds=rest)


def sentinel_of(process: Any) -> OwnedFd | int:
    """A descriptor that becomes readable when the process ends.

    multiprocessing's own sentinel is a pipe that grandchildren inherit, and stays open with them; a pidfd does not.
    """
    if hasattr(process, "_popen") and hasattr(os, "pidfd_open"):
        return OwnedFd(os.pidfd_open(process.pid))
    sentinel: int = process.sentinel
    return sentinel


def take_stack(hand: Hand) -> str:
    """Every thread's Python stack, written by a handler in C: it works while C code holds the interpreter."""
    if not hand.page.read().armed or not hand.process.is_alive() or not _catches(hand.process.pid):
        return ""
    hand.written()  # what was read before is not part of it
    with contextlib.suppress(ProcessLookupError):
        os.kill(hand.process.pid, main.STACK_SIGNAL)
    return _await_text(hand, TAKE_STACK, 0.005)


def _await_text(hand: Hand, most: Deadline, step: float) -> str:
    until = time.monotonic() + most.seconds
    text = ""
    end = select.poll()
    end.register(hand.sentinel, select.POLLIN)
    while time.monotonic() < until:
        end.poll(step * 1000)
        more = hand.written()
        text += more
        if text and not more:
            break  # it has come to its end
    return text


def _catches(pid: int) -> bool:
    """Whether the worker still has a handler for the signal; without one it would be killed by it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration, IndexError):
        return sys.platform != "linux"
    return bool(int(caught, 16) >> (main.STACK_SIGNAL - 1) & 1)
