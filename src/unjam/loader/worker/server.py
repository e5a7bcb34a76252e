"""The fork server: a small process with one thread, from which templates and workers are forked.

It is started once per training process, in a fresh interpreter, so it has none of the training
process's threads, locks and handles. It has imported torch, so a worker starts in milliseconds. It
holds no dataset: templates (`template`) or the workers themselves rebuild those.

The server imports libraries that a dataset needs before the next fork, so that they are imported
once. A library that starts a thread on import makes forking unsafe. Then the server replaces itself
(exec) with a fresh program that leaves that library to the workers. Its children stay its children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from unjam.loader.transport.channel import Frame
from unjam.loader.worker.forker import NO_THREADS, Fork, Forked, Forker, NotForked, count_threads

_STATE_VARIABLE = "UNJAM_SERVER_STATE"
# after this many restarts because an import started a thread, the server imports nothing more
MAX_STARTS = 3


@dataclass(frozen=True, slots=True)
class Preload:
    """Import these modules, if that is safe, so that workers do not have to."""

    modules: tuple[str, ...]
    path: tuple[str, ...]
    environ: dict[str, str]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The server has imported what it can and is ready to fork."""


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """Fork a template. Descriptors: its end of the channel, the parent's stdout and stderr."""


MESSAGE_TYPES = (Preload, Preloaded, NewTemplate, Fork, Forked, NotForked)


class Server(Forker):
    """The fork server's main loop and its requests; `fd`: an inherited socket."""

    def __init__(self, fd: int) -> None:
        state = json.loads(os.environ.pop(_STATE_VARIABLE, "{}"))
        super().__init__(fd, MESSAGE_TYPES, {int(pid): pipe for pid, pipe in state.get("children", {}).items()})
        # modules that start a thread on import
        self._refused: set[str] = set(state.get("refused", ()))
        self._tried = set(self._refused)
        from unjam.loader.worker import main as worker_main  # noqa: PLC0415 - slow: open the socket first

        self._worker_main = worker_main
        worker_main.warm_up()
        gc.freeze()
        if state:
            # We replaced a program that had not answered its request: answer it.
            self._answer(Preloaded())

    def _handle(self, frame: Frame) -> None:
        match frame.message:
            case Preload() as request:
                self._preload(request)
            case NewTemplate():
                self._fork(frame, "unjam-template", self._run_template)
            case Fork(worker):
                self._fork_worker(frame, worker)

    def _run_template(self, channel: int) -> None:
        from unjam.loader.worker.template import Template  # noqa: PLC0415 - only needed in a template

        Template(channel, self._worker_main).serve()

    # -- importing ahead ---------------------------------------------------------------------------------------------

    def _preload(self, request: Preload) -> None:
        before = list(sys.path)
        sys.path[:] = request.path
        # libraries read these variables on import
        os.environ.update(request.environ)
        os.environ.update(NO_THREADS)
        try:
            for name in request.modules:
                if name in self._tried or name in sys.modules or self._is_refused(name):
                    continue
                self._tried.add(name)
                # An import that fails here also fails in the worker, which reports it.
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
                if count_threads() > 1:
                    self._restart_without(name)
        finally:
            sys.path[:] = before
        gc.freeze()
        self._answer(Preloaded())

    def _is_refused(self, name: str) -> bool:
        """Return whether a module, or a package that contains it, starts threads on import."""
        if len(self._refused) >= MAX_STARTS:
            return True  # each restart takes seconds
        return any(name == one or name.startswith(one + ".") for one in self._refused)

    def _restart_without(self, culprit: str) -> None:
        """Exec a fresh program that does not import `culprit`; it answers the request."""
        state = {"children": self._children, "refused": sorted(self._refused | {culprit})}
        os.environ[_STATE_VARIABLE] = json.dumps(state)
        for fd in (self._control_fd, *self._children.values()):
            os.set_inheritable(fd, True)  # noqa: FBT003 - the standard library's signature
        os.execv(sys.executable, [sys.executable, *command_line(self._control_fd)])  # noqa: S606 - no shell needed


def command_line(fd: int) -> list[str]:
    """Return the interpreter's arguments that start a fresh server."""
    text = f"import sys; sys.path[:] = {list(sys.path)!r}; from unjam.loader.worker.server import Server; Server({fd}).serve()"
    return [*subprocess._args_from_interpreter_flags(), "-c", text]  # type: ignore[attr-defined] # noqa: SLF001
