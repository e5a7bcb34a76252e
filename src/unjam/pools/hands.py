"""What the parent holds of one living worker, and what it can see of it."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from unjam.engine.actions import Reason
from unjam.engine.deadlines import TAKE_STACK
from unjam.transport.channel import Channel
from unjam.transport.leases import Leases
from unjam.transport.memory import Mapping, OwnedFd
from unjam.transport.page import Page
from unjam.worker import main, messages
from unjam.worker.spec import WorkerSpec


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
    stop_reason: Reason | None = None
    killed_at: float | None = None
    stack_read: int = 0
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


class BeginFrame:
    """Makes the first frame for each worker of a pool."""

    def __init__(self, home: Any, payload: Any, tracker: int | None, *, adopted: bool) -> None:
        self._home = home
        self._payload = payload
        self._tracker = tracker
        self._adopted = adopted

    def frame(self, spec: WorkerSpec) -> tuple[main.Begin, tuple[int, ...]]:
        """The message and its descriptors, after the page and the stacks."""
        if self._payload is None:
            return main.Begin(spec, None, None, has_tracker=False, adopted=False), ()
        fds = (self._payload.fd, *((self._tracker,) if self._tracker is not None else ()), *self._payload.extra_fds)
        begin = main.Begin(
            spec,
            self._home,
            self._payload.manifest,
            has_tracker=self._tracker is not None,
            adopted=self._adopted,
        )
        return begin, fds


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
    until = time.monotonic() + TAKE_STACK.seconds
    text = ""
    end = select.poll()
    end.register(hand.sentinel, select.POLLIN)
    while time.monotonic() < until:
        end.poll(TAKE_STACK.milliseconds // 100)
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
