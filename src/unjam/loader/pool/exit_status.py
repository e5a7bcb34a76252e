"""How workers end: waiting for it, reading what they left, and what the engine is told."""

from __future__ import annotations

import dataclasses
import select
import signal
import time

from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Reason
from unjam.loader.pool.protocol import Ending
from unjam.loader.pool.worker_handle import Hand
from unjam.loader.transport.status_page import Stage
from unjam.system.memory_limits import oom_kills

_ON_BATCH = (Stage.GETITEM, Stage.COLLATE, Stage.PICKLE, Stage.SEND, Stage.RETRYING)


class MemoryWitness:
    """Tells whether a worker was killed for memory: the system counts such kills."""

    def __init__(self) -> None:
        self._seen = oom_kills()

    def look(self) -> None:
        """An epoch begins: kills until now are old."""
        self._seen = oom_kills()

    def killed(self, hand: Hand) -> str:
        """What speaks for it, in words; empty if nothing does."""
        if hand.process.exitcode != -signal.SIGKILL or hand.killed_at is not None:
            return ""
        before, now = self._seen, oom_kills()
        if before is None or now is None or now.count <= before.count or now.source != before.source:
            return ""
        # the next worker that is gone may have been killed by another of these
        self._seen = dataclasses.replace(before, count=before.count + 1)
        return f"{now.source} oom_kill {before.count} -> {now.count}"


def await_ends(hands: list[Hand], seconds: float) -> list[Hand]:
    """Wait for these workers' ends; return who is left."""
    until = time.monotonic() + seconds
    left = [hand for hand in hands if hand.process.is_alive()]
    while left and time.monotonic() < until:
        poller = select.poll()
        for hand in left:
            poller.register(hand.sentinel, select.POLLIN)
        poller.poll(max(0, int((until - time.monotonic()) * 1000)) + 1)
        left = [hand for hand in left if hand.process.is_alive()]
    return left


def ending_of(hand: Hand, memory: str) -> Ending:
    """What is known of the end of a worker that is gone."""
    return Ending(
        hand.number,
        hand.process.pid,
        hand.process.exitcode,
        hand.page.read(),
        hand.written(),
        memory,
        hand.said_farewell,
    )


def death_of(hand: Hand, ending: Ending) -> ev.Death:
    """A worker's end as the engine needs to know it."""
    beat = ending.beat
    cause = ev.Cause.MEMORY if ending.memory else ev.Cause.UNKNOWN
    if hand.killed_at is not None:
        cause = ev.Cause.SILENT if hand.stop_reason is Reason.SILENT else ev.Cause.SUSPENDED
    batch = beat.batch if beat.stage in _ON_BATCH else None
    position = beat.position if beat.stage in (Stage.GETITEM, Stage.RETRYING) else -1
    return ev.Death(hand.number, batch, position, cause, prepared=hand.prepared)
