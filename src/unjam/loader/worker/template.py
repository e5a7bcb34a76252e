"""A template: a process with a dataset's modules and data that forks the workers of every epoch.

NOTE [ Template ]

Forking is the fastest way to start a worker and the cheapest way to give it a dataset. But forking
the training process can deadlock. So a child of the fork server, which has one thread and inherits
nothing from the training process, imports the dataset's modules and rebuilds its data once. Workers
are forked from that child.

A template rebuilds:
- the large containers of plain values (`large_containers`). They hold no code, so rebuilding them
  has no side effects.
- the program's own modules and what they import, with the state that we send (`module_state`).
- the whole worker input, if the rest of it is large too, and only if rebuilding runs none of the
  program's own code: each worker needs its own copy of what a `__setstate__` opens or draws. If the
  rest is small, each worker rebuilds it.

Afterwards the template must have one thread, no child and no new descriptor. Otherwise it reports why
it is unfit and exits, and the parent starts another one that does less. Finally the template
makes its objects immortal (`immortal`), so that workers can read them without copying pages.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

from unjam.deadlines import TEMPLATE_IDLE
from unjam.loader.ship import immortal, shipping
from unjam.loader.ship.process_state import ProcessState, use_tracker
from unjam.loader.ship.reachable_modules import is_installed_module
from unjam.loader.transport.channel import Frame
from unjam.loader.worker import thread_limits
from unjam.loader.worker.forker import NO_THREADS, Fork, Forked, Forker, NotForked, count_threads
from unjam.system import memory
from unjam.system.proc_files import descriptor_target, descriptors


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What to rebuild.

    Descriptors: the large containers' memory if there are any, the resource tracker's if
    `has_tracker`, the payload's, then those that the payload uses.
    containers: offset and length of each large container's stream. modules: to import.
    whole: rebuild the worker input too.
    """

    process_state: ProcessState
    manifest: shipping.Manifest
    containers: tuple[tuple[int, int], ...]
    modules: tuple[str, ...]
    whole: bool
    has_tracker: bool
    threads: int | None


@dataclass(frozen=True, slots=True)
class Import:
    """Import these modules too, because workers had to import them."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The template can fork now, unless `unfit` says why not. imported: installed modules that it had to import."""

    unfit: str
    imported: tuple[str, ...] = ()


MESSAGE_TYPES = (Rebuild, Import, Rebuilt, Fork, Forked, NotForked)


class Template(Forker):
    """A template process, see NOTE [ Template ]."""

    idle = TEMPLATE_IDLE.seconds

    def __init__(self, fd: int, worker_main: Any) -> None:
        super().__init__(fd, MESSAGE_TYPES)
        self._worker_main = worker_main

    def _handle(self, frame: Frame) -> None:
        match frame.message:
            case Rebuild() as request:
                fds, frame.fds = frame.fds, []
                self._rebuild(request, fds)
            case Import(modules):
                self._import(modules)
            case Fork(worker):
                self._fork_worker(frame, worker)

    def _rebuild(self, request: Rebuild, fds: list[int]) -> None:
        before, modules = _descriptors(), set(sys.modules)
        unfit = ""
        gc.disable()  # rebuilding makes no garbage, and collections would take longer than the rebuilding
        try:
            self._load(request, fds)
        except BaseException as error:  # noqa: BLE001 - imports the program's own modules
            # The same error is raised again, and reported, in a worker.
            unfit = f"rebuilding it raised {type(error).__name__}: {error}"[:500]
        unfit = unfit or _unfit(before)
        gc.enable()
        if not unfit:
            gc.freeze()
            immortal.make_immortal([*shipping.containers, self._worker_input])
        loaded = list(sys.modules.items())
        imported = tuple(name for name, module in loaded if name not in modules and is_installed_module(module))
        self._answer(Rebuilt(unfit, imported))
        if unfit:
            os._exit(0)

    def _import(self, modules: tuple[str, ...]) -> None:
        before = _descriptors()
        os.environ.update(NO_THREADS)
        for name in modules:
            if name not in sys.modules:
                # An import that fails here also fails in the worker, which reports it.
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
        gc.freeze()
        unfit = _unfit(before, children=bool(self._children))
        self._answer(Rebuilt(unfit))
        if unfit:
            os._exit(0)

    def _load(self, request: Rebuild, fds: list[int]) -> None:
        if request.containers:
            shipping.containers[:] = _containers(fds.pop(0), request.containers)
        if request.has_tracker:
            use_tracker(fds.pop(0))
        request.process_state.apply_to_program()
        if request.threads is not None:
            thread_limits.cap_threads(request.threads, loaded_elsewhere=False, forked=False)
        os.environ.update(NO_THREADS)
        content = shipping.Content(fds[0], request.manifest)
        content.expect_state()
        for name in request.modules:
            if name not in sys.modules:
                importlib.import_module(name)
        if request.whole:
            self._worker_input = content.rebuild(fds[1:])
        os.close(fds[0])
        fds.clear()


def _containers(fd: int, places: tuple[tuple[int, int], ...]) -> list[Any]:
    """Rebuild containers from streams that hold only plain values; close their memory."""
    content = memory.MemoryMapping(fd, max(at + length for at, length in places) or 1, private=True).view()
    try:
        return [pickle.loads(content[at : at + length]) for at, length in places]
    finally:
        os.close(fd)


def _descriptors() -> set[tuple[int, int, int]]:
    """Return all open descriptors, with device and inode, because a number may be reused."""
    found = set()
    for fd in descriptors():
        with contextlib.suppress(OSError):  # a garbage collection has closed it meanwhile
            status = os.fstat(fd)
            found.add((fd, status.st_dev, status.st_ino))
    return found


def _unfit(before: set[tuple[int, int, int]], *, children: bool = False) -> str:
    """Return why it is unsafe to fork workers from this process; empty if it is safe."""
    if count_threads() > 1:
        return "importing the dataset's modules or rebuilding the dataset started a thread"
    new = _descriptors() - before
    if new:
        number = min(new)[0]
        name = descriptor_target(number) or f"descriptor {number}"
        return f"importing the dataset's modules or rebuilding the dataset opened {name}"
    if children:  # our workers are children too; we cannot tell them apart
        return ""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return ""
    return "importing the dataset's modules or rebuilding the dataset started a process"
