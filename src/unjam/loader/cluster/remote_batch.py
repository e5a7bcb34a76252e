"""A batch, or a failure, that came from another node."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
import weakref
from typing import Any

from unjam.loader.pool.protocol import BatchResult, Facts
from unjam.loader.pool.results import ArrivedBatch
from unjam.loader.transport.unpacking import unpack
from unjam.loader.worker.exceptions import ExceptionRecord
from unjam.loader.worker.job import Failed
from unjam.loader.worker.messages import BatchMade
from unjam.system.memory import address_of

# something in an error's text that may be the name of a file
_PATH = re.compile(r"""(?:[A-Za-z]:)?[\w.~-]*(?:/[\w.+@=,~ -]+)+|[\w-]+\.\w{1,5}\b""")


class Held:
    """The batches of other nodes that the consumer holds."""

    def __init__(self) -> None:
        self.count = self.nbytes = 0

    def add(self, owner: Any, nbytes: int) -> None:
        """Count a batch until its last tensor is gone."""
        self.count += 1
        self.nbytes += nbytes
        weakref.finalize(owner, self._gone, nbytes).atexit = False

    def _gone(self, nbytes: int) -> None:
        self.count -= 1
        self.nbytes -= nbytes


class RemoteFacts(Facts):
    """Facts whose failures name the node."""

    node = ""

    def failures(self) -> list[Failed]:
        """See `Facts`."""
        found = Facts.failures(self)
        for failed in found:
            there = f"on node {self.node}"
            if there not in failed.note:
                added = tuple(filter(None, (there, missing_there(failed))))
                failed.note = "; ".join(filter(None, (failed.note, *added)))
                if isinstance(failed.exception, ExceptionRecord):
                    failed.exception = dataclasses.replace(
                        failed.exception, notes=(*failed.exception.notes, "; ".join(added))
                    )
        return found


def remote_facts(plain: Facts, node: str) -> RemoteFacts:
    """Return facts that know their node."""
    facts = RemoteFacts(plain.samples, plain.nbytes, plain.times, plain.told, plain.listed, plain.profile, plain.news)
    facts.node = node
    return facts


class RemoteBatch(ArrivedBatch):
    """A batch over memory of the cluster's object store, which this process alone uses."""

    def __init__(self, made: BatchMade, data: Any, held: Held, node: str) -> None:
        super().__init__(made, data, None)  # type: ignore[arg-type] # it has no slots
        self._held, self._node = held, node

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        return remote_facts(super().facts, self._node)

    def open_held(self, *, copy: bool) -> tuple[Any, Any]:
        """Return the batch, and what keeps its memory."""
        data: Any = self._data
        made, view = self._made, memoryview(data)
        if copy or isinstance(data, bytes):
            owner: Any = bytearray(view)
        else:
            # Nobody else has this object, so the consumer may write to it; Ray maps it writable, and says that it is not.
            owner = (ctypes.c_ubyte * view.nbytes).from_address(address_of(view))
            owner.keeps = view
            self._held.add(owner, view.nbytes)
        return unpack(made.stream, made.stream_at, made.buffers, owner), owner

    def refuse(self) -> None:
        """Let the memory go."""
        self._data = b""


class RemoteFailure:
    """A failed batch of another node. See `BatchResult`."""

    def __init__(self, plain: BatchResult, node: str) -> None:
        self._plain, self._node = plain, node
        self.raises, self.empty, self.loading = plain.raises, plain.empty, plain.loading

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        return remote_facts(self._plain.facts, self._node)

    def open(self, *, copy: bool) -> Any:
        """See `BatchResult`."""
        return self._plain.open(copy=copy)

    def refuse(self) -> None:
        """Do nothing: no memory is held."""


def missing_there(failed: Failed) -> str:
    """Say so if an error is about a file that exists here."""
    error = failed.exception
    text = error.words if isinstance(error, ExceptionRecord) else str(error)
    if not re.search(
        r"No such file|not found|does not exist|cannot (open|read|find)|can't (open|read|find)", text, re.IGNORECASE
    ):
        return ""
    for name in dict.fromkeys(_PATH.findall(text)):
        if len(name) > 2 and os.path.exists(name):
            return f"{name} exists on this machine; the nodes need it too"
    return ""
