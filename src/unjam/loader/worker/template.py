"""A template: a process that has what a dataset is made of, and forks the workers of every epoch.

NOTE [ Template ]

Forking is the quickest way to start a worker and the cheapest way to give it a dataset; forking the training process is what deadlocks. So
the dataset's modules are imported and its data rebuilt once, in a child of the fork server with one thread and nothing of the training
process's, and workers are forked from there.

What is rebuilt here:
- *crowds*: the large containers of plain values (`crowds`). They hold no code, so rebuilding them can do nothing else.
- *modules*: the program's own, and what they import, with the state that travels (`module_state`).
- *the whole cargo*, where the rest of it is large too, and only if none of the program's own code has to run for that: what a `__setstate__`
  opens or draws must be each worker's own. Where the rest is small, each worker rebuilds it for itself.

Afterwards there must be one thread, no child, and no descriptor that was not there before; otherwise the template says why it is unfit and
ends, and the parent asks for another that does less. What it holds is then made never to be counted (`uncounted`), so that workers that
read it do not copy it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import sys
import time
from dataclasses import dataclass
from typing import Any

from unjam.loader.engine.deadlines import TEMPLATE_IDLE
from unjam.loader.ship import shipping, uncounted
from unjam.loader.ship.process_state import World, use_tracker
from unjam.loader.ship.reachable_modules import is_installed_module
from unjam.loader.transport.channel import Envelope
from unjam.loader.worker import thread_limits
from unjam.loader.worker.forker import Fork, Forked, Forker, NotForked, threads
from unjam.loader.worker.server import NO_THREADS
from unjam.system import memory


@dataclass(frozen=True, slots=True)
class More:
    """Descriptors that do not fit into the next frame."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """What to become. Descriptors: the crowds' memory if there are any, the resource tracker's if there is one, the payload's, its others.

    crowds: where each one's stream lies. modules: to be imported. whole: rebuild the cargo too.
    """

    home: World
    manifest: shipping.Manifest
    crowds: tuple[tuple[int, int], ...]
    modules: tuple[str, ...]
    whole: bool
    has_tracker: bool
    threads: int | None


@dataclass(frozen=True, slots=True)
class Import:
    """Import these too: workers had to."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """It can fork now; or it is unfit, and why. imported: installed modules that it had to import. seconds: that it took."""

    unfit: str
    imported: tuple[str, ...]
    seconds: float


LANGUAGE = (More, Rebuild, Import, Rebuilt, Fork, Forked, NotForked)


class Template(Forker):
    """See NOTE [ Template ]."""

    idle = TEMPLATE_IDLE.seconds

    def __init__(self, fd: int, program: Any) -> None:
        super().__init__(fd, LANGUAGE)
        self._program = program
        self._cargo: Any = None
        self._fds: list[int] = []

    def _obey(self, envelope: Envelope) -> None:
        match envelope.message:
            case More():
                self._fds += envelope.fds
                envelope.fds.clear()
            case Rebuild() as request:
                self._fds += envelope.fds
                envelope.fds.clear()
                self._rebuild(request)
            case Import(modules):
                self._import(modules)
            case Fork(worker):
                self._fork(envelope, f"unjam-worker-{worker}", self._work)

    def _work(self, channel: int) -> None:
        self._program.run(channel, self._cargo)

    def _rebuild(self, request: Rebuild) -> None:
        began, before, modules = time.monotonic(), _descriptors(), set(sys.modules)
        unfit = ""
        gc.disable()  # nothing of what is being rebuilt is garbage, and looking for some would take longer than the rebuilding
        try:
            self._become(request, self._fds)
        except BaseException as error:  # noqa: BLE001 - the program's own modules are imported in here
            # it will be raised again, and told, where a worker does the same
            unfit = f"rebuilding it raised {type(error).__name__}: {error}"[:500]
        unfit = unfit or _unfit(before)
        gc.enable()
        if not unfit:
            gc.freeze()
            uncounted.never_count([*shipping.crowds, self._cargo])
        loaded = list(sys.modules.items())
        imported = tuple(name for name, module in loaded if name not in modules and is_installed_module(module))
        self._answer(Rebuilt(unfit, imported, time.monotonic() - began))
        if unfit:
            os._exit(0)

    def _import(self, modules: tuple[str, ...]) -> None:
        began, before = time.monotonic(), _descriptors()
        os.environ.update(NO_THREADS)
        for name in modules:
            if name not in sys.modules:
                with contextlib.suppress(
                    BaseException
                ):  # what cannot be imported here fails in the worker, and is told
                    importlib.import_module(name)
        gc.freeze()
        unfit = _unfit(before, children=bool(self._children))
        self._answer(Rebuilt(unfit, (), time.monotonic() - began))
        if unfit:
            os._exit(0)

    def _become(self, request: Rebuild, fds: list[int]) -> None:
        if request.crowds:
            shipping.crowds[:] = _crowds(fds.pop(0), request.crowds)
        if request.has_tracker:
            use_tracker(fds.pop(0))
        request.home.settle_program()
        if request.threads is not None:
            thread_limits.cap_threads(request.threads, loaded_elsewhere=False, forked=False)
        os.environ.update(NO_THREADS)
        content = shipping.Content(fds[0], request.manifest)
        content.expect_state()
        for name in request.modules:
            if name not in sys.modules:
                importlib.import_module(name)
        if request.whole:
            self._cargo = content.rebuild(fds[1:])
        os.close(fds[0])
        fds.clear()


def _crowds(fd: int, places: tuple[tuple[int, int], ...]) -> list[Any]:
    """Rebuilt from streams that hold plain values only; what they lay in is let go of."""
    content = memory.Mapping(fd, max(at + length for at, length in places) or 1, private=True).view()
    try:
        return [pickle.loads(content[at : at + length]) for at, length in places]
    finally:
        os.close(fd)


def _descriptors() -> set[tuple[int, int, int]]:
    """Everything open, by number and by what it is: a number may be used again."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # the one that the list was read with
            continue
        found.add((int(name), status.st_dev, status.st_ino))
    return found


def _unfit(before: set[tuple[int, int, int]], *, children: bool = False) -> str:
    """Why workers must not be forked from this process; nothing: they can be."""
    if threads() > 1:
        return "its modules, or rebuilding it, started a thread"
    new = _descriptors() - before
    if new:
        number = min(new)[0]
        return f"its modules, or rebuilding it, opened something: {_name(number)}"
    if children:  # it has workers: whether one more child is theirs cannot be told
        return ""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return ""
    return "its modules, or rebuilding it, started a process"


def _name(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"
