"""Sends a dataset by value: pickled once, its arrays stored once in memory that every worker maps.

NOTE [ By value ]

A worker of the fork server gets the user's objects by value. We use cloudpickle, so lambdas, local
classes and notebook classes work, and a class of `__main__` that comes back in a batch is the
parent's own class again. Buffers (arrays, tensors) lie out of band in one piece of anonymous
memory, which each worker maps privately. So they exist once, and a worker that writes to one gets
its own copy of that page, as after a fork.

Some objects are more than their bytes, and work in the worker as they do here:
- Memory shared between processes stays shared: `share_memory_()`, memory maps of files, arrays
  over a `multiprocessing.Array`, multiprocessing's queues and locks of a spawn context. If this
  process has no descriptor of the shared memory, the object cannot be sent: a silent copy is worse
  than an error.
- A `threading.Lock` becomes a new, unlocked lock, even if a thread holds it now: nothing in the
  worker could release it.
- A file open for reading is opened again, at the same position, with its own file offset.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from unjam.loader.ship import module_state, reachable_modules, unpickling
from unjam.loader.ship.pickler import (
    ALIGNMENT,
    CannotPickle,
    ContainerPickler,
    ShippingPickler,
    TravellingPickler,
    as_if_spawning,
)
from unjam.loader.ship.shared_maps import SharedMaps
from unjam.system import memory
from unjam.system.logs import log
from unjam.system.memory import address_of, create, same_bytes
from unjam.system.owned_fd import OwnedFd


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where in the payload's memory the stream and each buffer lie. Plain data."""

    size: int
    stream: tuple[int, int]
    # state of the modules that the object's code can reach, see `module_state`
    state: tuple[int, int]
    buffers: tuple[tuple[int, int, bool], ...]


@dataclass(slots=True)
class Payload:
    """A pickled object: `fd` holds the bytes, `extra_fds` what it shares with this process."""

    fd: OwnedFd
    manifest: Manifest
    mapping: memory.MemoryMapping
    extra_fds: list[OwnedFd] = field(default_factory=list)
    # installed modules that a worker will need; the program's own modules that rebuilding imports
    modules: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    # a method of the program's own code that runs when the object is rebuilt; empty: none
    runs: str = ""
    # by id: sockets and pipes in it, which the worker shares with this process
    connections: frozenset[int] = frozenset()

    @classmethod
    def received(cls, content: Any, manifest: Manifest) -> Payload:
        """Return a payload whose bytes came from another process."""
        fd = OwnedFd(create(max(manifest.size, 1), "payload"))
        mapping = memory.MemoryMapping(fd, max(manifest.size, 1))
        mapping.view()[: manifest.size] = memoryview(content)[: manifest.size]
        return cls(fd, manifest, mapping)


class TooLarge(CannotPickle):
    """The payload would exceed the allowed memory; `size` is its size in bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"it takes {size} bytes")
        self.size = size


def ship(
    worker_input: object,
    previous: Payload | None = None,
    *,
    within: int | None = None,
    numbers: Mapping[int, int] | None = None,
    with_state: bool = False,
    travels: bool = False,
) -> Payload:
    """Pickle `worker_input` into memory; return `previous` if it holds the same bytes.

    Raises `TooLarge`, before allocating the memory, if it would take more than `within` bytes.
    `numbers`: by id, the large containers that the worker already has (`large_containers`).
    `with_state`: include the state of reachable modules, see NOTE [ Module state ].
    `travels`: to another machine, so pickle the program's own modules by value.
    """
    _main_by_value()
    dumped = _dump_with_code(worker_input) if travels else dump(worker_input, numbers)
    reached = reachable_modules.Reached()
    try:
        reached = reachable_modules.reach(dumped.modules)
        if with_state:
            dumped.state = _dump_state(reached, dumped.buffers)
    except Exception:  # noqa: BLE001 - user code
        # Module state is optional. Buffers added so far only take space.
        log.debug("the variables of the program's modules are not sent", exc_info=True)
    manifest = _plan(dumped)
    if previous is not None and _unchanged(dumped, manifest, previous):
        return previous
    if within is not None and manifest.size > within:
        raise TooLarge(manifest.size)
    fd = OwnedFd(create(max(manifest.size, 1), "payload"))
    mapping = memory.MemoryMapping(fd, max(manifest.size, 1))
    content = mapping.view()
    for (start, length), view in _places(manifest, dumped):
        content[start : start + length] = view
    needed = frozenset(dumped.modules & reached.own.keys())
    found = frozenset(dumped.connections)
    return Payload(fd, manifest, mapping, dumped.fds, frozenset(reached.installed), needed, dumped.runs, found)


def _dump_state(reached: reachable_modules.Reached, buffers: list[pickle.PickleBuffer]) -> bytes:
    """Pickle the state of the reached modules; append its buffers to those of the object."""
    maps = SharedMaps()

    def pack(value: Any) -> module_state.PackedVariable:
        stream = io.BytesIO()
        pickler = ShippingPickler(stream, maps)
        try:
            pickler.dump(value)
            if pickler.fds:
                raise CannotPickle("it holds a descriptor")
            first = len(buffers)
            buffers.extend(pickler.buffers)
            return module_state.PackedVariable(stream.getvalue(), first, len(pickler.buffers))
        finally:
            pickler.let_go()

    return pickle.dumps(module_state.collect(reached, pack), pickle.HIGHEST_PROTOCOL)


def _main_by_value() -> None:
    """Pickle classes of `__mp_main__` by value: no worker can import it.

    Multiprocessing gives the main program this name in a spawned child, e.g. a training rank.
    """
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(main)


def receive(fd: int, manifest: Manifest, fds: list[int], *, here: bool = False) -> Any:
    """Rebuild the object. `here`: in the process that pickled it, which already has its classes."""
    content = Content(fd, manifest)
    content.expect_state()
    return content.rebuild(fds, here=here)


# In a template and its workers: the large containers already rebuilt, by number.
containers: list[Any] = []


class Content:
    """The content of a payload; its arrays lie over a private mapping of the shared bytes."""

    def __init__(self, fd: int, manifest: Manifest) -> None:
        self._manifest = manifest
        self._content = memory.MemoryMapping(fd, max(manifest.size, 1), private=True).view()
        self._views = []
        for at, nbytes, readonly in manifest.buffers:
            view = self._content[at : at + nbytes]
            self._views.append(view.toreadonly() if readonly else view)

    def expect_state(self) -> None:
        """Register the module state; call before importing. See NOTE [ Module state ]."""
        start, length = self._manifest.state
        if length:
            module_state.expect(pickle.loads(self._content[start : start + length]), self._views)

    def rebuild(self, fds: list[int], *, here: bool = False) -> Any:
        """Return the object."""
        start, length = self._manifest.stream
        stream = self._content[start : start + length]
        with unpickling.descriptors(fds):
            if here:
                return _KeepingUnpickler(io.BytesIO(stream), buffers=self._views).load()
            if containers:
                return _ContainerUnpickler(io.BytesIO(stream), buffers=self._views).load()
            return pickle.loads(stream, buffers=self._views)


class _ContainerUnpickler(pickle.Unpickler):
    def persistent_load(self, number: int) -> Any:
        """Return a large container that the template has rebuilt."""
        return containers[number]


class _KeepingUnpickler(pickle.Unpickler):
    """Keeps the program's own classes: cloudpickle would overwrite their methods with copies."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return (lambda kind, _: kind) if name == "_class_setstate" else found


# -- pickling ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Dumped:
    """A pickled object before it is placed in memory."""

    stream: bytes
    buffers: list[pickle.PickleBuffer]
    fds: list[OwnedFd]
    modules: set[str]
    runs: str
    connections: set[int]
    state: bytes = b""


def dump(
    worker_input: object, numbers: Mapping[int, int] | None = None, kind: type[ShippingPickler] = ShippingPickler
) -> Dumped:
    """Pickle by value; raise what the object's pickling raises, or `CannotPickle`."""
    stream = io.BytesIO()
    pickler = ContainerPickler(stream, numbers) if numbers else kind(stream)
    with as_if_spawning(pickler):
        pickler.dump(worker_input)
    dumped = Dumped(stream.getvalue(), pickler.buffers, pickler.fds, pickler.modules, pickler.runs, pickler.connections)
    pickler.let_go()
    return dumped


def _dump_with_code(worker_input: object) -> Dumped:
    """Pickle for another machine, together with the program's own modules that the object needs."""
    dumped = dump(worker_input, kind=TravellingPickler)
    known = cloudpickle.list_registry_pickle_by_value()
    own = [module for name, module in reachable_modules.reach(dumped.modules).own.items() if name not in known]
    if not own:
        return dumped
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return dump(worker_input, kind=TravellingPickler)
    except Exception:  # noqa: BLE001 - some code cannot be pickled; the other machine may have it installed
        log.debug("the program's own modules cannot be sent", exc_info=True)
        return dumped
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


# -- placing -----------------------------------------------------------------------------------------------------------


def _plan(dumped: Dumped) -> Manifest:
    state = (len(dumped.stream), len(dumped.state))
    at = sum(state)
    buffers = []
    for buffer in dumped.buffers:
        raw = buffer.raw()
        at = -(-at // ALIGNMENT) * ALIGNMENT
        buffers.append((at, raw.nbytes, raw.readonly))
        at += raw.nbytes
    return Manifest(at, (0, len(dumped.stream)), state, tuple(buffers))


def _places(manifest: Manifest, dumped: Dumped) -> Iterator[tuple[tuple[int, int], memoryview]]:
    yield manifest.stream, memoryview(dumped.stream)
    if dumped.state:
        yield manifest.state, memoryview(dumped.state)
    for (start, length, _), buffer in zip(manifest.buffers, dumped.buffers, strict=True):
        yield (start, length), buffer.raw()


def _file(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _unchanged(dumped: Dumped, manifest: Manifest, previous: Payload) -> bool:
    if manifest != previous.manifest or [_file(fd) for fd in dumped.fds] != [_file(fd) for fd in previous.extra_fds]:
        return False
    base = previous.mapping.address
    return all(
        same_bytes(base + start, address_of(view), length) for (start, length), view in _places(manifest, dumped)
    )
