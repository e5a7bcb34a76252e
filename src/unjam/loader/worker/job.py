"""One batch while it is being made, and its failures."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import pickle
from dataclasses import dataclass, field
from typing import Any

from unjam.errors import SampleError
from unjam.loader.engine.policy import Decision
from unjam.loader.transport import classes
from unjam.loader.worker.exceptions import ExceptionRecord

# decision for a whole batch (position -1): load samples one by one, do not call __getitems__
SINGLY = "singly"


class Interrupted(Exception):
    """The parent asked this worker to exit while it was making a batch."""


class IterableEnded(Exception):
    """The worker's iterable has ended; `cut_short`: right after a sample that failed."""

    def __init__(self, cut_short: bool) -> None:  # noqa: FBT001 - the only argument
        super().__init__()
        self.cut_short = cut_short


class Emptied(Exception):
    """Every sample of the batch failed and was skipped: there is nothing to deliver."""


class RaiseFailure(Exception):
    """The policy decided to raise a failure: the last of the job's failures."""


@dataclass(slots=True)
class SampleFailure:
    """A failure as sent to the parent. `exception` is None if the parent knows it already."""

    position: int
    index: Any
    batch: int | None
    worker: int | None
    stage: str
    seconds: float
    exception: ExceptionRecord | BaseException | None
    key: str | None = None
    tries: int = 1
    yielded: int | None = None
    indices: tuple[Any, ...] = ()
    pid: int | None = None
    decision: Decision | None = None
    replacement: Any = None
    note: str = ""

    def as_error(self, exception: BaseException) -> SampleError:
        """Return the record that the user sees."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(SampleError)}
        decision = "" if self.decision is None else self.decision.value
        return SampleError(**{**values, "exception": exception, "decision": decision})

    def dumps(self) -> bytes:
        """Return it as bytes; an index that cannot be pickled becomes its repr."""
        for dumps in (pickle.dumps, classes.dumps):
            with contextlib.suppress(Exception):  # an index may be of a user-defined class
                data: bytes = dumps(self)
                pickle.loads(data)
                return data
        self.index = None if self.index is None else repr(self.index)
        self.indices = tuple(map(repr, self.indices))
        self.replacement = None if self.replacement is None else repr(self.replacement)
        return pickle.dumps(self)


@dataclass(slots=True)
class BatchJob:
    """A batch to make. `batch` is its number over all epochs, `number` its number in the epoch.

    decisions: by position, the parent's decision about samples that killed a worker.
    spares: indices that may replace a failed sample when no other index of the batch can.
    stamps: when each sample began, then when collate and pickling began and ended; nanoseconds.
    """

    batch: int
    number: int
    index: Any
    spares: tuple[Any, ...] = ()
    decisions: dict[int, str] = field(default_factory=dict)
    stamps: list[int] = field(default_factory=list)
    failures: list[SampleFailure] = field(default_factory=list)
    absent: set[int] = field(default_factory=set)
    replaced: dict[int, Any] = field(default_factory=dict)
    # indices whose samples failed or did not fit: not used as replacements
    rejected: list[Any] = field(default_factory=list)
    samples: int = 0
    # False: the loader does not batch, and `index` is the index of one sample even if it is a list
    batched: bool = True

    def indices(self) -> tuple[Any, ...]:
        """Return the batch's indices."""
        return indices_of(self.index, batched=self.batched)

    def remaining(self) -> tuple[Any, ...]:
        """Return the indices of the samples that were not skipped."""
        return tuple(index for at, index in enumerate(self.indices()) if at not in self.absent)

    def kept(self, count: int) -> list[int]:
        """Return the positions of the `count` samples that were not skipped, in order."""
        if not self.absent:
            return list(range(count))
        return [position for position in range(count + len(self.absent)) if position not in self.absent]

    def index_at(self, position: int) -> Any:
        """Return the index of the sample at a position: its own, or that of its replacement."""
        if position in self.replaced:
            return self.replaced[position]
        indices = self.indices()
        return indices[position] if 0 <= position < len(indices) else None

    def times(self) -> bytes:
        """Return the stamps as bytes."""
        return array.array("q", self.stamps).tobytes()

    def packed_failures(self) -> bytes:
        """Return the failures as bytes; empty if there are none."""
        return pickle.dumps([failed.dumps() for failed in self.failures]) if self.failures else b""


def indices_of(index: Any, *, batched: bool) -> tuple[Any, ...]:
    """Return a batch's indices; an index that is not iterable counts as one."""
    if not batched:
        return (index,)
    try:
        return tuple(index)
    except TypeError:
        return (index,)


def unpack_failures(packed: bytes) -> list[SampleFailure]:
    """Read what `BatchJob.packed_failures` wrote."""
    return [pickle.loads(one) for one in pickle.loads(packed)] if packed else []
