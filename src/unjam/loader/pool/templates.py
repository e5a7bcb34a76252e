"""Templates, as the training process sees them. See NOTE [ Template ] in `loader/worker/template.py`."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from typing import Any

from unjam.errors import CannotStartError
from unjam.loader.engine.deadlines import REBUILD
from unjam.loader.pool import fork_server
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.ship import large_containers
from unjam.loader.ship.large_containers import Crowd
from unjam.loader.ship.process_state import World, tracker_fd
from unjam.loader.ship.shipping import Payload
from unjam.loader.transport.channel import MOST_FDS, Channel, pair
from unjam.loader.worker import template
from unjam.shared.share import estimate
from unjam.system import memory

# templates of one process; who makes one more ends the one that was used least recently
MOST = 8
# a cargo whose stream is smaller than this is rebuilt by each worker for itself, in milliseconds
LARGE_STREAM = 1 << 20
_alive: weakref.WeakValueDictionary[int, Template] = weakref.WeakValueDictionary()


class Template(ForkClient):
    """One template process. It ends when nobody refers to this any more."""

    what = "the template"

    def __init__(self) -> None:
        mine, theirs = pair()
        super().__init__(Channel(mine, template.LANGUAGE))
        try:
            with theirs:
                fork_server.with_server(lambda server: server.new_template(theirs.fileno()))
        except BaseException:
            self._channel.close()
            raise
        self.imported: set[str] = set()  # modules that it was told to import, after it was made
        self.whole: Payload | None = None  # the payload that it has rebuilt, where it has
        self.crowds: list[Crowd] = []
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  # the pools whose workers it forks
        self._end = weakref.finalize(self, _let_go, self._channel, self._owner)
        _alive[id(self)] = self
        self.used()

    def used(self) -> None:
        """It was used now."""
        global _uses  # noqa: PLW0603 - one clock for all
        self.last = _uses = _uses + 1

    def rebuild(self, request: template.Rebuild, fds: list[int]) -> template.Rebuilt:
        """Have it rebuild what it is for. Raises `CannotStartError` where it does not answer."""
        rest = list(fds)
        with self._alone():
            while len(rest) > MOST_FDS:
                self._channel.post(template.More(), fds=rest[:MOST_FDS])
                del rest[:MOST_FDS]
            self._channel.post(request, fds=rest)
            (answer,) = self._answers(1, REBUILD)
        rebuilt: template.Rebuilt = answer.message
        return rebuilt

    def also(self, modules: list[str]) -> template.Rebuilt:
        """Have it import more modules."""
        with self._alone():
            self._channel.post(template.Import(tuple(modules)))
            (answer,) = self._answers(1, REBUILD)
        self.imported.update(modules)
        rebuilt: template.Rebuilt = answer.message
        return rebuilt

    def suits(self, known: list[Crowd], whole: Payload | None) -> bool:
        """Whether it has exactly these crowds, and the cargo of this payload or none."""
        return [id(one) for one in self.crowds] == [id(one) for one in known] and self.whole is whole

    def close(self) -> None:
        """End it, and the workers that it still has."""
        self._end()


_uses = 0


def _let_go(channel: Channel, owner: int) -> None:
    if owner == os.getpid():
        channel.close()
    else:
        channel.forget()


def _make_room() -> None:
    """End those templates that were used least recently and have no workers now, where there are too many."""
    living = [one for one in _alive.values() if one.usable]
    idle = sorted((one for one in living if not one.users), key=lambda one: one.last)
    for one in idle[: max(0, len(living) - MOST + 1)]:
        one.close()


class Keeper:
    """What a loader keeps between epochs: its crowds as they were sent, and the template that has them."""

    def __init__(self) -> None:
        self._crowds: list[Crowd] = []
        self._streams: dict[int, bytes] = {}
        self._template: Template | None = None
        # what a template was found unfit to do: rebuild the cargo, import the program's modules, hold the crowds
        self._unfit: dict[str, str] = {}
        # installed modules that the last template had to import: next time the server does it, for all
        self.imported: dict[str, None] = {}
        # modules that made a template unfit when it imported them later
        self._never_again: set[str] = set()
        # why each worker rebuilds the cargo for itself; empty: it does not, or it takes no time
        self.reason = ""

    def survey(self, dataset: Any) -> dict[int, int]:
        """The numbers of the dataset's crowds, by identity."""
        if "crowds" in self._unfit:
            self._crowds = []
            return {}
        known = {id(one.container): one for one in self._crowds}
        self._crowds = []
        for container in large_containers.find(dataset):
            one = known.get(id(container))
            if one is None or not one.unchanged():
                if one is not None:
                    one.forget()
                taken = large_containers.taken(container)
                if taken is None:
                    continue
                one, self._streams[id(container)] = taken
            self._crowds.append(one)
        return {id(one.container): number for number, one in enumerate(self._crowds)}

    @property
    def current(self) -> Template | None:
        """The template that was made or found last."""
        return self._template

    @property
    def has_crowds(self) -> bool:
        """Whether the last survey found any."""
        return bool(self._crowds)

    def weight(self) -> int:
        """About how many bytes the crowds take, once more, in a template."""
        return sum(estimate(one.container) for one in self._crowds)

    def template(self, payload: Payload, threads: int | None, imported: Iterable[str] = ()) -> Template | None:
        """A template for a payload whose crowds were surveyed just now; None: workers come from the fork server.

        imported: installed modules that workers had to import; a template that was made before does it now.
        """
        try:
            found = self._suiting(payload, threads)
            new = [] if found is None else [one for one in imported if one not in found.imported | self._never_again]
            if found is not None and new:
                try:
                    unfit = found.also(new).unfit
                except CannotStartError as error:  # it is gone
                    unfit = str(error)
                if unfit:  # the next one leaves them to the workers
                    found.close()
                    self._never_again.update(new)
                    found = self._suiting(payload, threads)
            return found
        finally:
            self._streams.clear()

    def _suiting(self, payload: Payload, threads: int | None) -> Template | None:
        self.reason = ""
        while True:
            modules = tuple(sorted(payload.own)) if "modules" not in self._unfit else ()
            whole = self._whole(payload)
            if not (modules or whole or self._crowds):
                self._template = None
                return None
            old = self._template
            if old is not None and old.usable and old.suits(self._crowds, payload if whole else None):
                old.used()
                return old
            self._template = None
            try:
                _make_room()
                empty = Template()
            except CannotStartError as error:  # no process, no descriptor: perhaps there is one at the next start
                self.reason = str(error)
                return None
            try:
                made, unfit = self._make(empty, payload, modules, threads, whole=whole)
            except CannotStartError as error:
                empty.close()
                made, unfit = None, str(error)
            if made is not None:
                self._template = made
                return made
            # another one that does less
            self._unfit["cargo" if whole else "modules" if modules else "crowds"] = self.reason = unfit
            if "crowds" in self._unfit:
                return None

    def _whole(self, payload: Payload) -> bool:
        """Whether the cargo itself is to be rebuilt in the template."""
        if payload.manifest.stream[1] < LARGE_STREAM:
            return False
        if payload.runs:
            self.reason = f"{payload.runs} is code of the program's own, which every worker has to call for itself"
        else:
            self.reason = self._unfit.get("cargo", "") or self._unfit.get("modules", "")
        return not self.reason

    def _make(
        self, made: Template, payload: Payload, modules: tuple[str, ...], threads: int | None, *, whole: bool
    ) -> tuple[Template | None, str]:
        tracker = tracker_fd()
        fds: list[int] = []
        places: tuple[tuple[int, int], ...] = ()
        with contextlib.ExitStack() as stack:
            if self._crowds:
                fd, places = self._written()
                stack.callback(os.close, fd)
                fds.append(fd)
            fds += [tracker] if tracker is not None else []
            fds += [payload.fd, *(payload.extra_fds if whole else ())]
            request = template.Rebuild(
                World.here(), payload.manifest, places, modules, whole, tracker is not None, threads
            )
            rebuilt = made.rebuild(request, fds)
        self.imported = dict.fromkeys(rebuilt.imported)
        if rebuilt.unfit:
            made.close()
            return None, rebuilt.unfit
        made.imported.update(rebuilt.imported)
        made.crowds, made.whole = list(self._crowds), payload if whole else None
        return made, ""

    def _written(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The crowds' streams in memory, and where each lies."""
        streams = []
        for number, one in enumerate(self._crowds):
            stream = self._streams.get(id(one.container))
            if stream is None:  # a template had it, and is gone
                one.forget()
                taken = large_containers.taken(one.container)
                if taken is None:
                    raise CannotStartError("the dataset was changed while its workers were started")
                self._crowds[number], stream = taken
            streams.append(stream)
        places, at = [], 0
        for stream in streams:
            places.append((at, len(stream)))
            at += len(stream)
        fd = memory.create(max(at, 1), "crowds")
        for stream in streams:
            view = memoryview(stream)
            while view:
                view = view[os.write(fd, view[: 256 << 20]) :]
        return fd, tuple(places)
