"""A pool of worker processes.

NOTE [ Stopping ]

Stopping takes less than two seconds, whatever the workers do. Each is told twice: a word in its page, which it reads
before every sample, and the end of its channel, which wakes it where it waits for work or for room to send. Who is still
there after `FINISH_SAMPLE` gets SIGTERM, after `OBEY_TERM` more SIGKILL. A worker is never waited for longer than
`OBEY_KILL` after that: what survives SIGKILL waits inside the kernel, and no waiting here would help it.

Batches that the consumer holds stay valid: they hold the memory, not the worker.

A process that was forked from the training process inherits a copy of every pool. Closing that copy must not touch the
workers, which belong to the parent; it lets go of the descriptors and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
from collections import deque
from typing import Any

from unjam.errors import CannotStartError
from unjam.loader.engine.actions import Reason
from unjam.loader.engine.deadlines import FINISH_SAMPLE, OBEY_KILL, OBEY_TERM
from unjam.loader.pool.exit_status import MemoryWitness, await_ends, death_of, ending_of
from unjam.loader.pool.launcher import Nursery
from unjam.loader.pool.open_pools import open_pools
from unjam.loader.pool.protocol import Arrival, Ending, Work
from unjam.loader.pool.results import dump_index, understand
from unjam.loader.pool.worker_handle import BeginFrame, Hand, glance, introduce, post, sentinel_of, take_stack
from unjam.loader.pool.worker_reports import Learnt
from unjam.loader.transport.channel import Channel, ChannelClosed
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.status_page import Beat, Page, Stage
from unjam.loader.worker import main, messages
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.memory import Mapping, OwnedFd


class ProcessPool:
    """Workers in processes of their own; each has its own channel and nothing is shared between two of them."""

    def __init__(self, nursery: Nursery, specs: list[WorkerSpec], begin: BeginFrame, learnt: Learnt) -> None:
        self._nursery = nursery
        self._specs = specs
        self._begin = begin
        self._owner = os.getpid()
        self._waiting_to_start: list[int] = []
        self._hands: dict[int, Hand] = {}
        self._by_fd: dict[int, Hand] = {}
        self._poller = select.poll()
        self._endings: dict[int, Ending] = {}
        self._memory = MemoryWitness()
        self.closed = False
        # workers that were killed for taking too long and are not gone yet
        self._killed: list[Hand] = []
        # what happened and nobody has taken yet: kept here, so that an exception that a signal raises in between loses nothing
        self.arrivals: deque[Arrival] = deque()
        self.processes: list[Any] = []
        self._learnt = learnt
        # nanoseconds on the machine's clock: when the first worker was asked for, when one had its dataset
        self._launched = self._ready_at = 0
        # how long it took to make this pool: to send the dataset, to start the fork server
        self.made_in = 0
        open_pools.add(self)

    # -- the protocol ------------------------------------------------------------------------------------------------

    def start(self, worker: int) -> None:
        """See `Pool`. The processes are made together, when the first thing is asked of any of them."""
        # an action may be done twice, see the feed
        if worker not in self._waiting_to_start and worker not in self._hands:
            self._waiting_to_start.append(worker)

    def send(self, worker: int, work: Work) -> None:
        """See `Pool`."""
        self._launch()
        hand = self._hands.get(worker)
        if hand is not None:
            if work.packed is None:
                work.packed = dump_index((work.index, work.spares)) if work.spares else dump_index(work.index)
            if work.sent_to == hand.process.pid:
                return  # an action may be done twice, but an iterable gives its samples once
            work.sent_to = hand.process.pid
            task = messages.Task(work.batch, work.number, bool(work.spares), work.verdicts or None, work.seed)
            post(hand, task, work.packed)

    def resume(self, shared_seed: int | None) -> None:
        """See `Pool`."""
        self._memory.look()
        # whoever is started from now on begins with this epoch
        self._specs = [dataclasses.replace(spec, shared_seed=shared_seed) for spec in self._specs]
        for hand in self._hands.values():
            post(hand, messages.Resume(shared_seed))

    def stop(self, worker: int, reason: Reason) -> None:
        """See `Pool`."""
        hand = self._hands.get(worker)
        if hand is None or hand.killed_at is not None:
            return
        hand.stop_reason = reason
        if reason in (Reason.SILENT, Reason.SUSPENDED, Reason.FORGOTTEN):
            hand.process.kill()
            hand.killed_at = time.monotonic()
            self._killed.append(hand)
        else:
            post(hand, messages.Leave())

    def wait(self, seconds: float) -> None:
        """See `Pool`."""
        self._launch()
        for hand in self._hands.values():
            if hand.channel.arrived:
                self._read(hand)  # an exception that a signal handler raised left it there
            if hand.channel.unsent:
                self._flush(hand)
                self._listen(hand)
        if self._killed:
            seconds = min(seconds, OBEY_KILL.seconds)
        # whoever asked for an exit code has read it from the pipe that is waited on here
        gone = [hand for hand in self._hands.values() if getattr(hand.process, "has_ended", False)]
        if gone:
            seconds = 0
        for fd, _ in self._poller.poll(0 if self.arrivals else max(0, int(seconds * 1000))):
            hand = self._by_fd[fd]
            if fd == hand.sentinel:
                gone += [hand] if hand not in gone else []
            else:
                self._read(hand)
        for hand in gone:
            self._bury(hand)
        if self._killed:
            self._abandon()

    def _abandon(self) -> None:
        """Whoever survives SIGKILL waits inside the kernel; nobody waits for it."""
        for hand in self._killed[:]:
            if self._hands.get(hand.number) is not hand:
                self._killed.remove(hand)
            elif time.monotonic() - (hand.killed_at or 0) > OBEY_KILL.seconds:
                self._killed.remove(hand)
                self._bury(hand)

    def answer(self, worker: int, decision: str) -> None:
        """See `Pool`."""
        hand = self._hands.get(worker)
        if hand is not None:
            post(hand, messages.Verdict(decision))

    def let_go_on(self, worker: int) -> None:
        """See `Pool`."""
        pid = self.pid(worker)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def ending(self, worker: int) -> Ending | None:
        """See `Pool`."""
        return self._endings.get(worker)

    def pid(self, worker: int) -> int | None:
        """See `Pool`."""
        hand = self._hands.get(worker)
        return None if hand is None else hand.process.pid

    def suspended(self, worker: int) -> bool:
        """See `Pool`."""
        from unjam.system.waiting import state_of  # noqa: PLC0415 - only for a worker that has not moved for a while

        pid = self.pid(worker)
        return pid is not None and state_of(pid) == "T"

    def stack(self, worker: int) -> str:
        """See `Pool`."""
        hand = self._hands.get(worker)
        return "" if hand is None else take_stack(hand)

    def glance(self, turn: int) -> tuple[Stage, str] | None:
        """From another thread: one worker's stage and stack, a different one each time; None: it does nothing."""
        with contextlib.suppress(IndexError, OSError, ZeroDivisionError):  # it may be gone at any moment
            hands = list(self._hands.values())
            return glance(hands[turn % len(hands)])
        return None

    def started_in(self) -> int:
        """See `Pool`."""
        return self.made_in + max(0, self._ready_at - self._launched)

    def memory(self) -> tuple[int, int]:
        """See `Pool`."""
        hands = self._hands.values()
        return sum(hand.leases.mapped_bytes for hand in hands), sum(hand.leases.held_bytes for hand in hands)

    def held(self) -> int:
        """See `Pool`."""
        return sum(hand.leases.held for hand in self._hands.values())

    def beat(self, worker: int) -> Beat | None:
        """A worker's last sign of life."""
        hand = self._hands.get(worker)
        return None if hand is None else hand.page.read()

    def close(self) -> None:
        """See NOTE [ Stopping ]."""
        if self._owner != os.getpid():
            self.forget()
            return
        if self.closed:
            return
        self.closed = True
        hands = list(self._hands.values())
        try:
            for hand in hands:
                hand.page.ask_to_stop()
                hand.channel.close()
            left = await_ends(hands, FINISH_SAMPLE.seconds)
            for hand in left:
                hand.process.terminate()
            left = await_ends(left, OBEY_TERM.seconds)
        finally:
            # reached by Ctrl-C as well: whoever is left is killed
            left = [hand for hand in hands if hand.process.is_alive()]
            for hand in left:
                hand.process.kill()
            await_ends(left, OBEY_KILL.seconds)
            for hand in hands:
                self._let_go(hand)

    def forget(self) -> None:
        """In a process that does not own the pool: close this process's copies of its descriptors."""
        self.closed = True
        for hand in self._hands.values():
            hand.channel.forget()
        self._hands.clear()
        self._by_fd.clear()

    # -- starting ----------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        if not self._waiting_to_start:
            return
        numbers = list(self._waiting_to_start)
        self._launched = self._launched or time.monotonic_ns()
        born = dict(zip(numbers, self._nursery.deliver(numbers), strict=True))
        try:
            for number in numbers:
                process, sock = born[number]
                self._take(number, process, Channel(sock, messages.LANGUAGE))
                del born[number]
                self._waiting_to_start.remove(number)
        finally:
            for process, sock in born.values():  # none, unless something went wrong
                sock.close()
                process.kill()

    def _take(self, number: int, process: Any, channel: Channel) -> None:
        page_fd, stacks_fd = main.make_start_memory()
        try:
            page = Page(page_fd)
            stacks = Mapping(stacks_fd, main.STACKS_BYTES)
            message, fds = self._begin.frame(self._specs[number])
            hand = Hand(number, process, channel, page, stacks, Leases(page), sentinel_of(process))
            if self._specs[number].profile:
                hand.stacks_fd = OwnedFd(os.dup(stacks_fd))
            self._hands[number] = hand
            self._by_fd[hand.sentinel] = hand
            self._by_fd[channel.fileno()] = hand
            self._poller.register(hand.sentinel, select.POLLIN)
            self._poller.register(channel.fileno(), select.POLLIN)
            if number < len(self.processes):
                self.processes[number] = process
            else:
                self.processes.append(process)
            self._introduce(hand, message, (page_fd, stacks_fd, *fds))
        finally:
            os.close(page_fd)
            os.close(stacks_fd)

    def _introduce(self, hand: Hand, message: object, fds: tuple[int, ...]) -> None:
        """Send the first frame. Unlike later ones it must go out, or the worker never learns who it is."""
        try:
            introduce(hand.channel, message, fds)
        except ChannelClosed:
            pass  # it is gone already; its sentinel says so
        except OSError as error:
            raise CannotStartError(
                f"this process has no descriptors left to start a worker ({error}); raise `ulimit -n` or close some files"
            ) from error

    # -- talking -----------------------------------------------------------------------------------------------------

    def _flush(self, hand: Hand) -> None:
        with contextlib.suppress(ChannelClosed):
            hand.channel.flush()

    def _read(self, hand: Hand) -> bool:
        channel = hand.channel
        came = channel.receive()
        while channel.arrived:
            envelope = channel.arrived[0]
            if envelope.meant is None:  # once only, should this be interrupted: a load has one slot to give back
                envelope.meant = understand(hand, envelope, self._learnt)
                self._ready_at = self._ready_at or hand.ready_at
            if envelope.meant is not None and envelope.meant not in self.arrivals:
                self.arrivals.append(envelope.meant)
            channel.arrived.popleft().close()
        self._listen(hand)
        return came

    def _listen(self, hand: Hand) -> None:
        """Wait for what can still come through a channel: nothing, once it is closed."""
        fd = hand.channel.fileno()
        if hand.channel.closed:
            if self._by_fd.pop(fd, None) is not None:
                self._poller.unregister(fd)
        else:
            self._poller.modify(fd, select.POLLIN | (select.POLLOUT if hand.channel.unsent else 0))

    # -- ends --------------------------------------------------------------------------------------------------------

    def _bury(self, hand: Hand) -> None:
        """A worker's process is gone: take what it still said, then tell of its death."""
        hand.process.join(0 if hand.killed_at is not None else OBEY_KILL.seconds)
        # not until the end of the stream: a child of the worker's may hold the other end open
        while hand.process.exitcode is not None and not hand.channel.closed and self._read(hand):
            pass
        ending = ending_of(hand, self._memory.killed(hand))
        self._endings[hand.number] = ending
        if self._hands.get(hand.number) is hand:
            del self._hands[hand.number]
        self._by_fd.pop(hand.sentinel, None)
        self._poller.unregister(hand.sentinel)
        self._let_go(hand)
        self._listen(hand)
        self.arrivals.append(Arrival(death_of(hand, ending)))

    def _let_go(self, hand: Hand) -> None:
        hand.channel.close()
        hand.process.join(0)
        if hasattr(hand.process, "forget"):
            hand.process.forget()
