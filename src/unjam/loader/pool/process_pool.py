"""A pool of worker processes.

NOTE [ Stopping ]

Stopping takes less than two seconds, whatever the workers do. We tell each worker twice: by a word
in its status page, which it reads before every sample, and by closing its channel, which wakes it
if it waits for work or for space to send. A worker that still lives after `FINISH_SAMPLE` gets
SIGTERM, and after `SIGTERM_GRACE` more SIGKILL. After that we wait for at most `SIGKILL_GRACE`: a process
that survives SIGKILL is blocked inside the kernel, and more waiting would not help.

Batches that the consumer holds stay valid: they own the memory, not the worker.

A process forked from the training process inherits a copy of every pool. Closing that copy must not
touch the workers, which belong to the parent; it only closes its descriptors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from unjam.deadlines import FINISH_SAMPLE, SIGKILL_GRACE, SIGTERM_GRACE
from unjam.errors import CannotStartError
from unjam.loader.engine.actions import Reason
from unjam.loader.pool.fork_server import ForkServerProcess
from unjam.loader.pool.launcher import Launcher
from unjam.loader.pool.pool_registry import living
from unjam.loader.pool.protocol import Pool, PoolEvent, WorkerExit
from unjam.loader.pool.worker_exits import OomKillCounter, death_of, exit_of, wait_for_exits
from unjam.loader.pool.worker_handle import (
    SetupMessages,
    WorkerHandle,
    post,
    sample_stack,
    sentinel_of,
    take_stack,
)
from unjam.loader.pool.worker_messages import local_event_of
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.channel import Channel, ChannelClosed, Frame
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.status_page import Heartbeat, Stage, StatusPage
from unjam.loader.worker import main, messages
from unjam.loader.worker.progress import WorkerPosition
from unjam.loader.worker.spec import WorkerSpec
from unjam.system.memory import MemoryMapping
from unjam.system.owned_fd import OwnedFd
from unjam.system.waiting import Waiting


class ProcessPool(Pool):
    """Worker processes. Each has its own channel, and two workers share nothing."""

    def __init__(
        self, launcher: Launcher, specs: list[WorkerSpec], setup: SetupMessages, reports: WorkerReports
    ) -> None:
        self._launcher = launcher
        self._specs = specs
        self._setup = setup
        self._owner_pid = os.getpid()
        self._handles: dict[int, WorkerHandle] = {}
        self._by_fd: dict[int, WorkerHandle] = {}
        self._poller = select.poll()
        self._waker: int | None = None
        self._exits: dict[int, WorkerExit] = {}
        self._oom_kills = OomKillCounter()
        self.closed = False
        # Events that the driver has not taken yet. They are stored here so that an exception from a
        # signal handler loses nothing.
        self.arrivals: deque[PoolEvent] = deque()
        self.processes: list[Any] = []
        self._reports = reports
        # monotonic nanoseconds: when the first worker was launched, when the first one was ready
        self._launched = self._ready_at = 0
        # how long it took to make this pool, in nanoseconds: sending the dataset, starting the
        # server
        self.made_in = 0
        living.add(self)

    # -- the `Pool` protocol -----------------------------------------------------------------------

    @override
    def start(self, workers: list[int], positions: Mapping[int, WorkerPosition]) -> None:
        for worker in workers:  # an exit that a signal handler interrupted, after the driver learnt of the death
            if worker in self._handles and self._handles[worker].death is not None:
                del self._handles[worker]
        numbers = [worker for worker in workers if worker not in self._handles]  # an action may be done twice
        if not numbers:
            return
        self._launched = self._launched or time.monotonic_ns()
        started = dict(zip(numbers, self._launcher.launch(numbers), strict=True))
        try:
            for number in numbers:
                process, sock = started[number]
                spec = dataclasses.replace(self._specs[number], start_at=positions.get(number))
                self._add_worker(spec, process, Channel(sock, messages.MESSAGE_TYPES))
                del started[number]
        finally:
            for process, sock in started.values():  # empty unless something failed
                sock.close()
                process.kill()

    @override
    def send(self, worker: int, request: messages.BatchRequest) -> None:
        handle = self._handles.get(worker)
        # an action may be done twice, but an iterable yields its samples once
        if handle is not None and request.sent_to != handle.process.pid:
            request.sent_to = handle.process.pid
            request.pack()
            post(handle, request)

    @override
    def begin_epoch(self, shared_seed: int | None, epoch: int) -> None:
        self._oom_kills.reset()
        # workers that start from now on begin with this epoch
        self._specs = [dataclasses.replace(spec, shared_seed=shared_seed, epoch=epoch) for spec in self._specs]
        for handle in self._handles.values():
            post(handle, messages.BeginEpoch(shared_seed, epoch))

    @override
    def stop(self, worker: int, reason: Reason) -> None:
        handle = self._handles.get(worker)
        if handle is None or handle.killed_at is not None:
            return
        handle.stop_reason = reason
        if reason in (Reason.OVERDUE, Reason.SUSPENDED, Reason.FORGOTTEN, Reason.MOVED):
            handle.process.kill()
            handle.killed_at = time.monotonic()
        else:
            post(handle, messages.Leave())

    @override
    def wait(self, seconds: float) -> None:
        killed = []  # by `stop`, and not gone yet
        for handle in self._handles.values():
            if handle.killed_at is not None:
                killed.append(handle)
                seconds = min(seconds, SIGKILL_GRACE.seconds)
            if handle.channel.arrived:
                self._read(handle)  # left there by an exception from a signal handler
            if handle.channel.unsent:
                with contextlib.suppress(ChannelClosed):
                    handle.channel.flush()
                self._listen(handle)
        # Reading `exitcode` empties the pipe that we poll here, so poll would miss these.
        gone = [
            one
            for one in self._handles.values()
            if isinstance(one.process, ForkServerProcess) and one.process.has_ended
        ]
        if gone:
            seconds = 0
        for fd, _ in self._poller.poll(0 if self.arrivals else max(0, int(seconds * 1000))):
            if fd == self._waker:
                continue
            handle = self._by_fd[fd]
            if fd == handle.sentinel:
                gone += [handle] if handle not in gone else []
            else:
                self._read(handle)
        for handle in gone:
            self._handle_exit(handle)
        # Stop waiting for workers that survive SIGKILL: they are blocked inside the kernel.
        for handle in killed:
            has_exited = self._handles.get(handle.number) is not handle
            if not has_exited and time.monotonic() - (handle.killed_at or 0) > SIGKILL_GRACE.seconds:
                self._handle_exit(handle)

    def wake_on(self, fd: int) -> None:
        """Let `wait` return as soon as a descriptor can be read; the caller reads it."""
        self._waker = fd
        self._poller.register(fd, select.POLLIN)

    @override
    def answer(self, worker: int, decision: str) -> None:
        handle = self._handles.get(worker)
        if handle is not None:
            post(handle, messages.PolicyAnswer(decision))

    @override
    def continue_worker(self, worker: int) -> None:
        pid = self.pid(worker)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @override
    def last_exit(self, worker: int) -> WorkerExit | None:
        return self._exits.get(worker)

    @override
    def pid(self, worker: int) -> int | None:
        handle = self._handles.get(worker)
        return None if handle is None else handle.process.pid

    @override
    def suspended(self, worker: int) -> bool:
        from unjam.system.waiting import thread_state  # noqa: PLC0415 - only for a worker that is stuck

        pid = self.pid(worker)
        return pid is not None and thread_state(pid) == "T"

    @override
    def stack(self, worker: int) -> str:
        handle = self._handles.get(worker)
        return "" if handle is None else take_stack(handle)

    @override
    def waits_for(self, worker: int) -> Waiting:
        from unjam.system.waiting import current_wait  # noqa: PLC0415 - only for a worker that is stuck

        return current_wait(self.pid(worker) or 0)

    @override
    def sample_stack(self, turn: int) -> tuple[Stage, str] | None:
        # the worker may exit at any time
        with contextlib.suppress(IndexError, OSError, ZeroDivisionError):
            handles = list(self._handles.values())
            return sample_stack(handles[turn % len(handles)])
        return None

    @override
    def started_in(self) -> int:
        return self.made_in + max(0, self._ready_at - self._launched)

    @override
    def memory(self) -> tuple[int, int]:
        handles = list(self._handles.values())  # another thread may ask
        return sum(handle.leases.mapped_bytes for handle in handles), sum(
            handle.leases.held_bytes for handle in handles
        )

    @override
    def held(self) -> int:
        return sum(handle.leases.held for handle in self._handles.values())

    @override
    def heartbeat(self, worker: int) -> Heartbeat | None:
        handle = self._handles.get(worker)
        return None if handle is None else handle.page.read()

    def close(self) -> None:
        """End every worker, as NOTE [ Stopping ] describes."""
        if self._owner_pid != os.getpid():
            self.forget()
            return
        if self.closed:
            return
        self.closed = True
        handles = list(self._handles.values())
        try:
            for handle in handles:
                handle.page.ask_to_stop()
                handle.channel.close()
            left = wait_for_exits(handles, FINISH_SAMPLE.seconds)
            for handle in left:
                handle.process.terminate()
            left = wait_for_exits(left, SIGTERM_GRACE.seconds)
        finally:
            # also after Ctrl-C: kill the workers that are left
            left = [handle for handle in handles if handle.process.is_alive()]
            for handle in left:
                handle.process.kill()
            wait_for_exits(left, SIGKILL_GRACE.seconds)
            for handle in handles:
                self._release(handle)

    def forget(self) -> None:
        """Close this process's copies of the descriptors; the parent owns the pool."""
        self.closed = True
        for handle in self._handles.values():
            handle.channel.forget()
        self._handles.clear()
        self._by_fd.clear()

    # -- starting ----------------------------------------------------------------------------------

    def _add_worker(self, spec: WorkerSpec, process: Any, channel: Channel) -> None:
        page_fd, stacks_fd = main.make_start_memory()
        number = spec.worker
        try:
            page = StatusPage(page_fd)
            stacks = MemoryMapping(stacks_fd, main.STACKS_BYTES)
            message, fds = self._setup.message(spec)
            handle = WorkerHandle(number, process, channel, page, stacks, Leases(page), sentinel_of(process))
            if spec.profile:
                handle.stacks_fd = OwnedFd(os.dup(stacks_fd))
            self._handles[number] = handle
            self._by_fd[handle.sentinel] = handle
            self._by_fd[channel.fileno()] = handle
            self._poller.register(handle.sentinel, select.POLLIN)
            self._poller.register(channel.fileno(), select.POLLIN)
            if number < len(self.processes):
                self.processes[number] = process
            else:
                self.processes.append(process)
            try:
                # unlike later messages it must be sent, or the worker cannot start
                channel.post(message, fds=(page_fd, stacks_fd, *fds))
            except ChannelClosed:
                pass  # the worker is gone; its sentinel reports it
            except OSError as error:
                raise CannotStartError(
                    f"this process has no descriptors left to start a worker ({error}); raise `ulimit -n` or close some files"
                ) from error
        finally:
            os.close(page_fd)
            os.close(stacks_fd)

    # -- messages ----------------------------------------------------------------------------------

    def _read(self, handle: WorkerHandle) -> bool:
        channel = handle.channel
        came = channel.receive()
        while channel.arrived:
            frame = channel.arrived[0]
            # only once, even if interrupted: a batch has one slot to give back
            if frame.event is None:
                frame.event = self._event_of(handle, frame)
                self._ready_at = self._ready_at or handle.ready_at
            if frame.event is not None and id(frame.event) not in map(id, self.arrivals):
                self.arrivals.append(frame.event)
            channel.arrived.popleft().close()
        self._listen(handle)
        return came

    def _event_of(self, handle: WorkerHandle, frame: Frame) -> PoolEvent | None:
        return local_event_of(handle, frame, self._reports)

    def _listen(self, handle: WorkerHandle) -> None:
        """Poll a channel for what it can still do; stop polling it once it is closed."""
        fd = handle.channel.fileno()
        if handle.channel.closed:
            self._stop_polling(fd, handle)
        else:
            self._poller.modify(fd, select.POLLIN | (select.POLLOUT if handle.channel.unsent else 0))

    def _stop_polling(self, fd: int, handle: WorkerHandle) -> None:
        # The descriptor of a channel that broke may belong to another worker by now.
        if self._by_fd.get(fd) is handle:
            del self._by_fd[fd]
            self._poller.unregister(fd)

    # -- exits -------------------------------------------------------------------------------------

    def _handle_exit(self, handle: WorkerHandle) -> None:
        """Handle a worker's exit: read what it still sent, then report its death."""
        handle.process.join(0 if handle.killed_at is not None else SIGKILL_GRACE.seconds)
        # do not read until the end of the stream: a child of the worker may keep it open
        while handle.process.exitcode is not None and not handle.channel.closed and self._read(handle):
            pass
        # A signal handler may raise at any point. As long as the sentinel is polled, the rest is done in the next `wait`.
        if handle.death is None:
            last_exit = self._exits[handle.number] = exit_of(handle, self._oom_kills.killed(handle))
            handle.death = death_of(handle, last_exit)
        if self._handles.get(handle.number) is handle:
            if id(handle.death) not in map(id, self.arrivals):
                self.arrivals.append(handle.death)
            del self._handles[handle.number]
        self._release(handle)
        self._listen(handle)
        self._stop_polling(handle.sentinel, handle)

    def _release(self, handle: WorkerHandle) -> None:
        handle.channel.close()
        handle.process.join(0)
        if isinstance(handle.process, ForkServerProcess):
            handle.process.close_descriptors()
