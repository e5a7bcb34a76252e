"""What the parent holds of one living worker, and what it can tell of its end."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Any

from unjam.engine.actions import Reason
from unjam.transport.channel import Channel
from unjam.transport.leases import Leases
from unjam.transport.memory import Mapping, OwnedFd
from unjam.transport.page import Page, Stage
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
    stop_reason: Reason | None = None
    # batches whose slot this process could not map, until their bytes come through the channel
    without_memory: dict[tuple[int, int], messages.Made] = field(default_factory=dict)
    unmapped: set[int] = field(default_factory=set)


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


def story_of(hand: Hand) -> str:
    """How a worker ended and what it was doing, in the words torch begins with."""
    code = hand.process.exitcode
    if code is None:
        end = "is gone"
    elif code < 0:
        end = f"is killed by signal: {_signal_words(-code)}"
    else:
        end = f"exited with status {code} without a goodbye"
    beat = hand.page.read()
    doing = {
        Stage.STARTING: "while it started",
        Stage.LOADING: "while it loaded the dataset",
        Stage.INIT: "in worker_init_fn",
        Stage.IDLE: "while it waited for work",
        Stage.GETITEM: f"in batch {beat.batch}, at sample {beat.position} of it",
        Stage.COLLATE: f"while it collated batch {beat.batch}",
        Stage.PICKLE: f"while it pickled batch {beat.batch}",
        Stage.SEND: f"while it sent batch {beat.batch}",
        Stage.LEAVING: "while it left",
    }[beat.stage]
    return f"DataLoader worker (pid {hand.process.pid}) {end}, {doing}"


def _signal_words(number: int) -> str:
    try:
        return f"{signal.strsignal(number)} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
