"""A batch, or a failure, that came from another node."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import weakref
from typing import Any

from typing_extensions import override

from unjam.loader.pool.batch_result import BatchResult, report_of
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker.exceptions import ExceptionRecord
from unjam.loader.worker.job import SampleFailure
from unjam.system.memory import ReceivedMemory

# something in an error's text that may be the name of a file
_PATH = re.compile(r"""(?:[A-Za-z]:)?[\w.~-]*(?:/[\w.+@=,~ -]+)+|[\w-]+\.\w{1,5}\b""")


class HeldBatches:
    """Counts the batches of other nodes that the consumer holds."""

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


class RemoteBatch(BatchResult):
    """A batch over memory of the cluster's object store, which this process alone uses."""

    def __init__(self, packed: PackedBatch, data: Any, held: HeldBatches, node: str) -> None:
        self._packed, self._data, self._held = packed, data, held
        self.report = report_of(packed)
        self.report.nbytes += len(data)
        self.report.annotate = functools.partial(name_node, node=node)

    @override
    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        data, view = self._data, memoryview(self._data)
        if copy or isinstance(data, bytes):
            owner: Any = bytearray(view)
        else:
            # no other process has this object, so the consumer may write to it; Ray maps it writable but marks it read-only
            owner = ReceivedMemory(view).owner()
            self._held.add(owner, view.nbytes)
        return self._packed.unpack(owner), owner

    @override
    def refuse(self) -> None:
        self._data = b""


def name_node(failure: SampleFailure, node: str) -> None:
    """Add a note about the node to a failure, once."""
    there = f"on node {node}"
    if there in failure.note:
        return
    added = tuple(filter(None, (there, missing_there(failure))))
    failure.note = "; ".join(filter(None, (failure.note, *added)))
    if isinstance(failure.exception, ExceptionRecord):
        failure.exception = dataclasses.replace(failure.exception, notes=(*failure.exception.notes, "; ".join(added)))


def missing_there(failure: SampleFailure) -> str:
    """Say so if an error is about a file that exists here."""
    error = failure.exception
    text = error.words if isinstance(error, ExceptionRecord) else str(error)
    if not re.search(
        r"No such file|not found|does not exist|cannot (open|read|find)|can't (open|read|find)", text, re.IGNORECASE
    ):
        return ""
    for name in dict.fromkeys(_PATH.findall(text)):
        if len(name) > 2 and os.path.exists(name):
            return f"{name} exists on this machine; the nodes need it too"
    return ""
