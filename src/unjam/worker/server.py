"""The fork server: a small process with one thread, from which every worker is forked.

It is started once per training process, by a fresh interpreter, so it has none of the training process's threads,
locks and handles; and it has torch imported, so a worker starts in milliseconds. It knows nothing of datasets. It forks
when asked, reaps what ends, reports the status through a pipe it alone holds, and when its parent is gone it goes, and
the kernel takes the workers with it.

Libraries that a dataset needs are imported here before the next fork, so that they are imported once and not by every
worker in every epoch. A library that starts a thread when it is imported would make forking unsafe: then the server
replaces its own program by a fresh one that leaves that library to the workers. Its children stay its children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from unjam.engine.deadlines import HAND_OVER, LOOK_AROUND
from unjam.transport.channel import Channel, ChannelClosed, Envelope
from unjam.worker.lifeline import ParentSight, die_with_parent

_STATE_VARIABLE = "UNJAM_SERVER_STATE"
# variables that keep libraries from starting a thread when they are imported; each worker has the program's own again
NO_THREADS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false"
}  # Arrow's allocator: pandas, scikit-learn, datasets import it
# how often the server starts over because an import started a thread, before it imports nothing more
MOST_STARTS = 3


@dataclass(frozen=True, slots=True)
class Preload:
    """Import these modules, if that is safe, so that workers need not."""

    modules: tuple[str, ...]
    path: tuple[str, ...]
    environ: dict[str, str]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The server is ready to fork, with the modules or, for those in `refused`, without."""

    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a worker. Descriptors: its end of the channel, then the parent's standard output and error."""

    worker: int


@dataclass(frozen=True, slots=True)
class Forked:
    """A worker was forked. Descriptors: the pipe its status will come through and, where there are any, its pidfd."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotForked:
    """The system refused to fork."""

    reason: str


LANGUAGE = (Preload, Preloaded, Fork, Forked, NotForked)


def main(fd: int) -> None:
    """Be the fork server, on an inherited socket."""
    Server(fd).serve()


class Server:
    """See the module's text."""

    def __init__(self, fd: int) -> None:
        self._control_fd = fd
        self._channel = Channel(socket.socket(fileno=fd), LANGUAGE)
        state = json.loads(os.environ.pop(_STATE_VARIABLE, "{}"))
        # status pipes of children that an earlier program of this process forked
        self._children: dict[int, int] = {int(pid): pipe for pid, pipe in state.get("children", {}).items()}
        self._tried: set[str] = set(state.get("refused", ()))
        self._refused: set[str] = set(state.get("refused", ()))
        self._parent = ParentSight(os.getppid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        from unjam.worker import main as program  # noqa: PLC0415 - torch; the socket must be held before that long import

        self._program = program
        program.warm_up()
        gc.freeze()
        if state:
            # this program replaced one that was answering a request
            self._answer(Preloaded(tuple(sorted(self._refused))))

    def serve(self) -> None:
        """Fork and reap until the parent is gone."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        if self._parent.fd is not None:
            poller.register(self._parent.fd, select.POLLIN)
        self._reap()
        while not self._channel.closed and self._parent.alive(0):
            poller.poll(LOOK_AROUND.milliseconds)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
            self._reap()
            self._channel.receive()
            while self._channel.arrived:
                self._obey(self._channel.arrived.popleft())
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _obey(self, envelope: Envelope) -> None:
        try:
            if isinstance(envelope.message, Preload):
                self._preload(envelope.message)
            else:
                self._fork(envelope)
        finally:
            envelope.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self._children.pop(pid, None)
            if pipe is not None:
                with contextlib.suppress(OSError):
                    os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(pipe)

    # -- forking -----------------------------------------------------------------------------------------------------

    def _fork(self, envelope: Envelope) -> None:
        read, write = os.pipe()
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(read)
            os.close(write)
            self._answer(NotForked(f"{error.strerror} (the limit of processes or memory is reached)"))
            return
        if pid == 0:
            self._child(me, envelope, (read, write))
        self._children[pid] = write
        fds = [read]
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(pid))
        self._answer(Forked(pid), fds)
        for fd in fds:
            os.close(fd)

    def _answer(self, message: object, fds: list[int] | None = None) -> None:
        with contextlib.suppress(ChannelClosed):
            self._channel.deliver(message, HAND_OVER, fds=fds or ())

    def _child(self, server: int, envelope: Envelope, pipe: tuple[int, int]) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            die_with_parent(server)
            request: Fork = envelope.message
            channel, *output = envelope.fds
            for fd in (*pipe, self._control_fd, self._wake, *self._children.values()):
                os.close(fd)
            if self._parent.fd is not None:
                os.close(self._parent.fd)
            for standard, fd in zip((1, 2), output, strict=False):
                os.dup2(fd, standard)
                os.close(fd)
            _name_thread(f"unjam-worker-{request.worker}")
            # what the server holds stays frozen: a collection that looked at it would copy it into every worker
            self._program.run(socket.socket(fileno=channel), None)
            code = 0
        except BaseException:  # noqa: BLE001 - the last frame of this process; the report goes to stderr
            import traceback  # noqa: PLC0415 - never needed otherwise

            traceback.print_exc()
        finally:
            _leave(code)

    # -- importing ahead ---------------------------------------------------------------------------------------------

    def _preload(self, request: Preload) -> None:
        before = list(sys.path)
        sys.path[:] = request.path
        # libraries read it when they are imported, as they did in the parent
        os.environ.update(request.environ)
        os.environ.update(NO_THREADS)
        try:
            for name in request.modules:
                if name in self._tried or name in sys.modules or self._is_refused(name):
                    continue
                self._tried.add(name)
                with contextlib.suppress(
                    BaseException
                ):  # what cannot be imported here fails in the worker, and is told
                    importlib.import_module(name)
                if _threads() > 1:
                    self._start_over(name)
        finally:
            sys.path[:] = before
        gc.freeze()
        self._answer(Preloaded(tuple(sorted(self._refused))))

    def _is_refused(self, name: str) -> bool:
        """Whether a module starts threads, or lies in one that does."""
        if len(self._refused) >= MOST_STARTS:
            return True  # each time costs seconds: whoever imports them all ends with the same threads
        return any(name == one or name.startswith(one + ".") for one in self._refused)

    def _start_over(self, culprit: str) -> None:
        """Replace this program by a fresh one that will not import `culprit`; it answers the request."""
        state = {"children": self._children, "refused": sorted(self._refused | {culprit})}
        os.environ[_STATE_VARIABLE] = json.dumps(state)
        for fd in (self._control_fd, *self._children.values()):
            os.set_inheritable(fd, True)  # noqa: FBT003 - the standard library's signature
        os.execv(sys.executable, [sys.executable, *command_line(self._control_fd)])  # noqa: S606 - no shell is the point


def command_line(fd: int) -> list[str]:
    """What a fresh server is started with, after the interpreter's name."""
    text = f"import sys; sys.path[:] = {list(sys.path)!r}; from unjam.worker.server import main; main({fd})"
    return [*subprocess._args_from_interpreter_flags(), "-c", text]  # type: ignore[attr-defined] # noqa: SLF001


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading  # noqa: PLC0415 - elsewhere than on Linux only Python's own threads can be counted

        return threading.active_count()


def _name_thread(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name[:15])


def _leave(code: int) -> None:
    """End as multiprocessing's children do: its finalisers run, streams are flushed, the interpreter is not torn down."""
    from multiprocessing import util  # noqa: PLC0415 - at the end only

    try:
        util._exit_function()  # type: ignore[attr-defined] # noqa: SLF001 - what BaseProcess._bootstrap calls
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
