"""Finds what workers would share although it can serve only one of them: a connection, or a position in a file.

A request that one worker sends may be answered to another, and a worker that reads moves the position
for all. The samples are then wrong, and nothing fails. So it is said before the first batch.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import stat
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from unjam.loader.worker.spec import WorkerInput
from unjam.system.object_graph import Held, attributes, enclosed, items, walk, wrapped

DEEPEST, MOST = 12, 1000
_MOST_ITEMS = 20
# kinds of objects that have no handle below them; most of a dataset is made of them
_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType, types.CodeType)


@dataclass(frozen=True, slots=True)
class SharedHandle:
    """One of them. path: as the user would write it."""

    path: str
    type_name: str
    is_connection: bool

    @property
    def risk(self) -> str:
        """What goes wrong, as the end of a sentence."""
        if self.is_connection:
            return "all workers share this one connection, so the answer to one may reach another, and samples may be wrong"
        return (
            "all workers share the position in this one file, so each moves it for the others, and samples may be wrong"
        )

    @property
    def cure(self) -> str:
        """What to do."""
        return (
            f"help: make it in each worker: unjam.per_worker(what opens it, its arguments) in place of {self.path}; or open "
            "it on first use in __getitem__"
        )


def shared_handles(worker_input: WorkerInput) -> list[SharedHandle]:
    """The connections and open files that the worker input holds; each once, under its shortest path."""
    found: dict[int, SharedHandle] = {}
    queues: set[int] = set()
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        root = Held(name, getattr(worker_input, name))
        for part, fresh in walk(root, _parts, deepest=DEEPEST, most=MOST):
            if not fresh:
                continue
            if type(part.value).__module__.split(".")[0] in ("multiprocessing", "torch") and not issubclass(
                type(part.value), (Connection, socket.socket)
            ):
                queues |= {id(inner.value) for inner in attributes(part.value)}  # made for several processes
                continue
            descriptor = _descriptor(part.value) if id(part.value) not in queues else None
            if descriptor is None or descriptor in found:
                continue
            with contextlib.suppress(OSError):
                mode = os.fstat(descriptor).st_mode
                is_connection = stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)
                if is_connection or (stat.S_ISREG(mode) and _reads(part.value)):
                    kind = type(part.value)
                    found[descriptor] = SharedHandle(part.step, f"{kind.__module__}.{kind.__qualname__}", is_connection)
    return list(found.values())


def _parts(above: Held) -> Iterator[Held]:
    value = above.value
    if issubclass(type(value), (*_PLAIN, io.IOBase)):  # an object may refuse to say its class
        return
    for part in (*items(value, _MOST_ITEMS), *attributes(value, _MOST_ITEMS), *wrapped(value)):
        if not issubclass(type(part.value), _PLAIN):
            yield part._replace(step=above.step + part.step)
    if type(value) is types.FunctionType:
        for part in enclosed(value):
            yield part._replace(step=f"{part.step} of {above.step}")


def _descriptor(value: Any) -> int | None:
    """The descriptor of an object, asked only where no code of the program's own runs."""
    method = getattr(type(value), "fileno", None)
    if method is None or (
        isinstance(method, types.FunctionType) and not issubclass(type(value), (io.IOBase, Connection))
    ):
        return None
    try:
        fd = value.fileno()
    except Exception:  # noqa: BLE001 - it is closed, or has none
        return None
    return fd if type(fd) is int and fd > 2 else None


def _reads(file: Any) -> bool:
    """Whether a file is open for reading, in a way that uses the position."""
    if not issubclass(type(file), io.IOBase):
        return False
    with contextlib.suppress(Exception):
        return bool(file.readable())
    return False
