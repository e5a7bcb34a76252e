"""One batch while it is being made, and what went wrong in it."""

from __future__ import annotations

import array
import contextlib
import pickle
from dataclasses import dataclass, field
from typing import Any

from unjam.errors import SampleError
from unjam.loader.engine.policy import Decision
from unjam.loader.transport import classes
from unjam.loader.worker.exceptions import ExceptionRecord

# a verdict for the whole batch (its position): load its samples one by one, though the dataset could give all at once
SINGLY = "singly"


class Interrupted(Exception):
    """The parent asked this worker to leave while it was making a batch."""


class IterableEnded(Exception):
    """The worker's iterable has no more samples; `cut_short`: it ended right after a sample that failed."""

    def __init__(self, cut_short: bool) -> None:  # noqa: FBT001 - it has one meaning
        super().__init__()
        self.cut_short = cut_short


class Emptied(Exception):
    """Every sample of the batch failed and was skipped: there is nothing to deliver."""


class Surrender(Exception):
    """The policy says that a failure is to be raised; it is the last of the job's failures."""


@dataclass(slots=True)
class Failed:
    """A failure as it crosses the border. `exception` is None for a sample that its parent already knows about."""

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
        """The record that the user sees."""
        return SampleError(
            index=self.index,
            batch=self.batch,
            worker=self.worker,
            stage=self.stage,
            seconds=self.seconds,
            exception=exception,
            key=self.key,
            tries=self.tries,
            yielded=self.yielded,
            indices=self.indices,
            pid=self.pid,
            decision="" if self.decision is None else self.decision.value,
            replacement=self.replacement,
            note=self.note,
        )

    def dumps(self) -> bytes:
        """As bytes; an index that cannot travel goes as its words."""
        for dumps in (pickle.dumps, classes.dumps):
            with contextlib.suppress(Exception):  # an index may be of a class of the user's
                data: bytes = dumps(self)
                pickle.loads(data)
                return data
        self.index = None if self.index is None else repr(self.index)
        self.indices = tuple(map(repr, self.indices))
        self.replacement = None if self.replacement is None else repr(self.replacement)
        return pickle.dumps(self)


@dataclass(slots=True)
class Job:
    """A batch to make. `batch` is its number for ever, `number` its number in the epoch.

    verdicts: by position, what the parent has decided about samples that ended a worker.
    spares: indices that may stand in for a failed sample when no other of the batch can.
    stamps: when each sample began, and at the end when collating and packing began; nanoseconds.
    """

    batch: int
    number: int
    index: Any
    spares: tuple[Any, ...] = ()
    verdicts: dict[int, str] = field(default_factory=dict)
    stamps: list[int] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    absent: set[int] = field(default_factory=set)
    replaced: dict[int, Any] = field(default_factory=dict)
    # indices whose samples failed or did not fit: none of them takes another one's place
    rejected: list[Any] = field(default_factory=list)
    samples: int = 0
    # whether the loader makes batches; otherwise the index is one sample's, whatever it looks like
    batched: bool = True

    def indices(self) -> tuple[Any, ...]:
        """The batch's indices, as far as they can be listed."""
        if not self.batched:
            return (self.index,)
        try:
            return tuple(self.index)
        except TypeError:
            return (self.index,)

    def remaining(self) -> tuple[Any, ...]:
        """The indices of the samples that were not left out."""
        return tuple(index for at, index in enumerate(self.indices()) if at not in self.absent)

    def kept(self, count: int) -> list[int]:
        """The positions of the `count` samples that are there, in their order."""
        if not self.absent:
            return list(range(count))
        return [position for position in range(count + len(self.absent)) if position not in self.absent]

    def index_at(self, position: int) -> Any:
        """The index of the sample at a position: its own, or the one that took its place."""
        if position in self.replaced:
            return self.replaced[position]
        indices = self.indices()
        return indices[position] if 0 <= position < len(indices) else None

    def times(self) -> bytes:
        """The stamps as bytes."""
        return array.array("q", self.stamps).tobytes()

    def told(self) -> bytes:
        """The failures as bytes; empty when there are none."""
        return pickle.dumps([failed.dumps() for failed in self.failures]) if self.failures else b""


def failures_from(told: bytes) -> list[Failed]:
    """What `Job.told` wrote."""
    return [pickle.loads(one) for one in pickle.loads(told)] if told else []
