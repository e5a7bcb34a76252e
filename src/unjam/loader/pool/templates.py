"""The parent's side of templates. See NOTE [ Template ] in `loader/worker/template.py`."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from unjam.deadlines import TEMPLATE_BUILD
from unjam.errors import CannotStartError
from unjam.loader.pool import fork_server
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.ship import large_containers
from unjam.loader.ship.large_containers import LargeContainer
from unjam.loader.ship.process_state import ProcessState, tracker_fd
from unjam.loader.ship.shipping import Payload
from unjam.loader.transport.channel import Channel, pair
from unjam.loader.worker import template
from unjam.shared.share import estimate
from unjam.system import memory
from unjam.system.owned_fd import OwnedFd

# templates per process; above this we stop the least recently used ones that have no workers
MAX_TEMPLATES = 8
# below this stream size, each worker rebuilds the input itself; that takes milliseconds
LARGE_STREAM = 1 << 20
_alive: weakref.WeakValueDictionary[int, TemplateProcess] = weakref.WeakValueDictionary()


class TemplateProcess(ForkClient):
    """One template process. It ends when the last reference to this object is gone."""

    what = "the template"

    def __init__(self) -> None:
        mine, theirs = pair()
        super().__init__(Channel(mine, template.MESSAGE_TYPES))
        try:
            with theirs:
                fork_server.with_server(lambda server: server.new_template(theirs.fileno()))
        except BaseException:
            self._channel.close()
            raise
        # modules that it has imported since it was forked
        self.imported: set[str] = set()
        self.whole: Payload | None = None  # the payload that it has rebuilt, if any
        self.containers: list[LargeContainer] = []
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # the pools whose workers it forks
        self._end = weakref.finalize(self, _close_channel, self._channel, self._owner_pid)
        _alive[id(self)] = self
        self.last = time.monotonic()  # when it was used

    def request(self, request: template.Rebuild | template.Import, fds: Sequence[int] = ()) -> template.Rebuilt:
        """Make it rebuild its data or import more modules. Raises `CannotStartError` if it does not answer."""
        with self._exclusive():
            self._ask(request, fds=fds)
            (answer,) = self._answers(1, TEMPLATE_BUILD)
        rebuilt: template.Rebuilt = answer.message
        return rebuilt

    def suits(self, known: list[LargeContainer], whole: Payload | None) -> bool:
        """Return whether it has exactly these containers and this payload's input (None: no input)."""
        return [id(one) for one in self.containers] == [id(one) for one in known] and self.whole is whole

    def close(self) -> None:
        """Stop it, and the workers that it still has."""
        self._end()


def _close_channel(channel: Channel, owner: int) -> None:
    if owner == os.getpid():
        channel.close()
    else:
        channel.forget()


def _end_idle_templates() -> None:
    """If there are too many templates, stop the least recently used ones that have no workers."""
    living = [one for one in _alive.values() if one.usable]
    idle = sorted((one for one in living if not one.users), key=lambda one: one.last)
    for one in idle[: max(0, len(living) - MAX_TEMPLATES + 1)]:
        one.close()


class TemplateCache:
    """What a loader keeps between epochs: its large containers as sent, and their template."""

    def __init__(self) -> None:
        self._containers: list[LargeContainer] = []
        self._streams: dict[int, bytes] = {}
        self._template: TemplateProcess | None = None
        # By task, why a template cannot do it: rebuild the input ("input"), import the program's
        # modules ("modules"), hold the large containers ("containers").
        self._unfit: dict[str, str] = {}
        # installed modules that the last template had to import: the server preloads them next time
        self.imported: dict[str, None] = {}
        # modules that made a template unfit when it imported them later
        self._unsafe_imports: set[str] = set()
        # why each worker rebuilds the input itself; empty if it does not, or if that is quick
        self.reason = ""

    def find_containers(self, dataset: Any) -> dict[int, int]:
        """Return the number of each large container of the dataset, by `id`."""
        if "containers" in self._unfit:
            self._containers = []
            return {}
        known = {id(one.container): one for one in self._containers}
        self._containers = []
        for container in large_containers.find(dataset):
            one = known.get(id(container))
            if one is None or not one.unchanged():
                if one is not None:
                    one.forget()
                snapshot = large_containers.snapshot(container)
                if snapshot is None:
                    continue
                one, self._streams[id(container)] = snapshot
            self._containers.append(one)
        return {id(one.container): number for number, one in enumerate(self._containers)}

    @property
    def has_containers(self) -> bool:
        """Whether the last `find_containers` found any."""
        return bool(self._containers)

    def estimated_bytes(self) -> int:
        """Estimate how many bytes the large containers take in a template."""
        return sum(estimate(one.container) for one in self._containers)

    def template(self, payload: Payload, threads: int | None, imported: Iterable[str] = ()) -> TemplateProcess | None:
        """Return a template for a payload, or None if workers should be forked from the fork server.

        Call `find_containers` first. `imported`: installed modules that workers had to import; an
        existing template imports them now.
        """
        try:
            found = self._reuse_or_make(payload, threads)
            new = [] if found is None else [one for one in imported if one not in found.imported | self._unsafe_imports]
            if found is not None and new:
                try:
                    unfit = found.request(template.Import(tuple(new))).unfit
                    found.imported.update(new)
                except CannotStartError as error:  # the template is gone
                    unfit = str(error)
                if unfit:  # the next template leaves these to the workers
                    found.close()
                    self._unsafe_imports.update(new)
                    found = self._reuse_or_make(payload, threads)
            return found
        finally:
            self._streams.clear()

    def _reuse_or_make(self, payload: Payload, threads: int | None) -> TemplateProcess | None:
        self.reason = ""
        while True:
            modules = tuple(sorted(payload.own)) if "modules" not in self._unfit else ()
            whole = self._whole(payload)
            if not (modules or whole or self._containers):
                self._template = None
                return None
            old = self._template
            if old is not None and old.usable and old.suits(self._containers, payload if whole else None):
                old.last = time.monotonic()
                return old
            self._template = None
            try:
                _end_idle_templates()
                made = TemplateProcess()
            # no process or descriptor is free; there may be one at the next start
            except CannotStartError as error:
                self.reason = str(error)
                return None
            try:
                unfit = self._rebuild_in(made, payload, modules, threads, whole=whole)
            except CannotStartError as error:
                unfit = str(error)
            if not unfit:
                self._template = made
                return made
            made.close()
            # try another one that does less
            self._unfit["input" if whole else "modules" if modules else "containers"] = self.reason = unfit
            if "containers" in self._unfit:
                return None

    def _whole(self, payload: Payload) -> bool:
        """Whether the template should rebuild the worker input too."""
        if payload.manifest.stream[1] < LARGE_STREAM:
            return False
        if payload.runs:
            self.reason = f"rebuilding it runs the program's own {payload.runs}, which must run in each worker"
        else:
            self.reason = self._unfit.get("input", "") or self._unfit.get("modules", "")
        return not self.reason

    def _rebuild_in(
        self, made: TemplateProcess, payload: Payload, modules: tuple[str, ...], threads: int | None, *, whole: bool
    ) -> str:
        """Make a new template rebuild its data; return why it is unfit."""
        tracker = tracker_fd()
        fds: list[int] = []
        places: tuple[tuple[int, int], ...] = ()
        if self._containers:
            fd, places = self._written()
            fds.append(fd)
        fds += [tracker] if tracker is not None else []
        fds += [payload.fd, *(payload.extra_fds if whole else ())]
        request = template.Rebuild(
            ProcessState(), payload.manifest, places, modules, whole, tracker is not None, threads
        )
        rebuilt = made.request(request, fds)
        self.imported = dict.fromkeys(rebuilt.imported)
        made.imported.update(rebuilt.imported)
        made.containers, made.whole = list(self._containers), payload if whole else None
        return rebuilt.unfit

    def _written(self) -> tuple[OwnedFd, tuple[tuple[int, int], ...]]:
        """Write the containers' streams into shared memory; return it and each stream's place."""
        streams = []
        for number, one in enumerate(self._containers):
            stream = self._streams.get(id(one.container))
            if stream is None:  # the template that had it is gone
                one.forget()
                snapshot = large_containers.snapshot(one.container)
                if snapshot is None:
                    raise CannotStartError("the dataset was modified while its workers were starting")
                self._containers[number], stream = snapshot
            streams.append(stream)
        places, at = [], 0
        for stream in streams:
            places.append((at, len(stream)))
            at += len(stream)
        fd = OwnedFd(memory.create(max(at, 1), "containers"))
        for stream in streams:
            view = memoryview(stream)
            while view:
                view = view[os.write(fd, view[: 256 << 20]) :]
        return fd, tuple(places)
