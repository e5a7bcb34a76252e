"""A dataset by value: pickled once, its arrays placed once in memory that every worker maps.

NOTE [ By value ]

A worker of the fork server gets the user's objects by value: cloudpickle, so lambdas, local classes and classes of a
notebook travel, and a class of `__main__` that comes back in a batch is the parent's own class again. Buffers
(arrays, tensors) lie out of band in one piece of anonymous memory, mapped private by each worker: they exist once, and a
worker that writes to one gets its own copy of that page, as after a fork.

Some things mean more than their bytes, and keep their meaning:
- memory shared between processes (`share_memory_()`, memory maps of files, multiprocessing's queues and locks of a
  spawn context) stays shared; shared memory that cannot be handed over makes the object unshippable, because a silent
  copy would be worse than an error;
- an unlocked `threading.Lock` arrives as a new unlocked lock: that is all a fork would give;
- a file open for reading arrives open, at the same position, with an offset of its own.
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

from unjam.transport import memory
from unjam.transport.memory import OwnedFd, address_of, create, same_bytes
from unjam.worker import arrivals
from unjam.worker.reducing import ALIGNMENT, CannotShip, ShippingPickler, StandingPickler, as_if_spawning


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where in the payload's memory the stream and each buffer lie. Plain data."""

    size: int
    stream: tuple[int, int]
    buffers: tuple[tuple[int, int, bool], ...]
    # whether something stands in the place of containers
    stands: bool = False


@dataclass(slots=True)
class Payload:
    """A shipped object in memory: `fd` holds the bytes, `extra_fds` what it shares with this process."""

    fd: OwnedFd
    manifest: Manifest
    mapping: memory.Mapping
    extra_fds: list[OwnedFd] = field(default_factory=list)
    modules: frozenset[str] = frozenset()


class TooLarge(CannotShip):
    """What would be sent takes more memory than it may; `size` is how much."""

    def __init__(self, size: int) -> None:
        super().__init__(f"it takes {size} bytes")
        self.size = size


def ship(
    cargo: object,
    previous: Payload | None = None,
    *,
    within: int | None = None,
    stands: Mapping[int, Any] | None = None,
) -> Payload:
    """Pickle `cargo` into memory; give back `previous` itself if it holds the very same bytes.

    Raises `TooLarge`, before any memory is taken, if more than `within` bytes would be. `stands`: by identity, what goes in the place of
    containers.
    """
    _main_by_value()
    dumped = dump(cargo, stands)
    manifest = _plan(dumped, stands=bool(stands))
    if previous is not None and _unchanged(dumped, manifest, previous):
        return previous
    if within is not None and manifest.size > within:
        raise TooLarge(manifest.size)
    fd = OwnedFd(create(max(manifest.size, 1), "payload"))
    mapping = memory.Mapping(fd, max(manifest.size, 1))
    content = mapping.view()
    for (start, length), view in _places(manifest, dumped):
        content[start : start + length] = view
    return Payload(fd, manifest, mapping, dumped.fds, frozenset(dumped.modules))


def _main_by_value() -> None:
    """The program as multiprocessing's spawn names it in a child, where a rank has its classes: no worker can import that."""
    main = sys.modules.get("__mp_main__")
    if main is not None and main.__name__ not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(main)


def receive(fd: int, manifest: Manifest, fds: list[int]) -> Any:
    """Rebuild what was shipped, its arrays over a private mapping of the shared bytes."""
    content = memory.Mapping(fd, max(manifest.size, 1), private=True).view()
    start, length = manifest.stream
    views = []
    for at, nbytes, readonly in manifest.buffers:
        view = content[at : at + nbytes]
        views.append(view.toreadonly() if readonly else view)
    with arrivals.descriptors(fds):
        if manifest.stands:
            return _StandingUnpickler(io.BytesIO(content[start : start + length]), buffers=views).load()
        return pickle.loads(content[start : start + length], buffers=views)


class _StandingUnpickler(pickle.Unpickler):
    def persistent_load(self, stands: Any) -> Any:
        """What stands for a container has been rebuilt already."""
        return stands


# -- pickling ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Dumped:
    """A pickled object before it has a place."""

    stream: memoryview
    buffers: list[pickle.PickleBuffer]
    fds: list[OwnedFd]
    modules: set[str]


def dump(cargo: object, stands: Mapping[int, Any] | None = None) -> Dumped:
    """Pickle by value; raises what the object's own pickling raises, or `CannotShip`."""
    stream = io.BytesIO()
    pickler = StandingPickler(stream, stands) if stands else ShippingPickler(stream)
    with as_if_spawning(pickler):
        pickler.dump(cargo)
    dumped = Dumped(stream.getbuffer(), pickler.buffers, pickler.fds, pickler.modules)
    pickler.let_go()
    return dumped


# -- placing -----------------------------------------------------------------------------------------------------------


def _plan(dumped: Dumped, *, stands: bool) -> Manifest:
    at = dumped.stream.nbytes
    buffers = []
    for buffer in dumped.buffers:
        raw = buffer.raw()
        at = -(-at // ALIGNMENT) * ALIGNMENT
        buffers.append((at, raw.nbytes, raw.readonly))
        at += raw.nbytes
    return Manifest(at, (0, dumped.stream.nbytes), tuple(buffers), stands)


def _places(manifest: Manifest, dumped: Dumped) -> Iterator[tuple[tuple[int, int], memoryview]]:
    yield manifest.stream, dumped.stream
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
