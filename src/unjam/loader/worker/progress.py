"""A worker's position: what its replacement, or a resumed run, needs to continue exactly there.

With each batch the worker sends what changed: the states of the random generators, the dataset's own
state if it has `state_dict()`, and how many samples its stream has yielded. The parent merges these
updates into one `WorkerPosition` per worker, which is plain data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from unjam.errors import CannotResumeError
from unjam.loader.transport import classes
from unjam.system import random_state


@dataclass(frozen=True, slots=True)
class WorkerPosition:
    """A worker's position after a batch.

    random: states of the generators that were used. dataset, iterator: pickled states of the dataset and
    of its iterator, after `state_at` samples; empty if they have none. yielded: samples that the stream has yielded.
    last: fingerprint of the last one. ended: the stream has ended. problem: why there is no state.
    start: states of the generators when the epoch began, in a worker that had loaded others before.
    """

    random: Mapping[str, bytes] = field(default_factory=dict)
    dataset: bytes = b""
    iterator: bytes = b""
    state_at: int = 0
    yielded: int = 0
    last: int = 0
    ended: bool = False
    problem: str = ""
    start: Mapping[str, bytes] = field(default_factory=dict)

    def after(self, update: bytes) -> WorkerPosition:
        """Return the position after a batch that came with this update."""
        if not update:
            return self
        changed: dict[str, Any] = pickle.loads(update)
        if "random" in changed:
            changed["random"] = {**self.random, **changed["random"]}
        return dataclasses.replace(self, **changed)

    def in_next_epoch(self) -> WorkerPosition:
        """Return the position at the beginning of the next epoch of a worker that stays."""
        return WorkerPosition(self.random, self.dataset, start=self.random)


def is_stateful(one: Any) -> bool:
    """Whether an object can save its position; a neural network's state says nothing about its position in the data."""
    return (
        callable(getattr(one, "state_dict", None))
        and callable(getattr(one, "load_state_dict", None))
        and not isinstance(one, (torch.nn.Module, type))
    )


class PositionTracker:
    """In a worker: returns after each batch what changed. `every`: batches between two states of the dataset."""

    def __init__(self, dataset: Any, iterator: Any, *, every: int = 1, random: bool = True) -> None:
        self._dataset = dataset if is_stateful(dataset) and dataset is not iterator else None
        self._iterator = iterator if is_stateful(iterator) else None
        self._streams = iterator is not None
        self._every = max(1, every)
        self._batches = 0
        self._changes = random_state.Changes() if random else None

    def update(self, yielded: int = 0, last: Any = None, *, ended: bool = False) -> bytes:
        """Return what changed since the last batch."""
        found: dict[str, Any] = {}
        if self._changes is not None and (changed := self._changes.states()):
            found["random"] = changed
        self._batches += 1
        has_state = self._dataset is not None or self._iterator is not None
        if has_state and (ended or self._batches % self._every == 0):
            found |= self._states(yielded)
        if self._streams:
            found |= {"yielded": yielded, "ended": ended}
            if self._iterator is None and self._dataset is None and last is not None:
                found["last"] = fingerprint(last)
        return pickle.dumps(found, pickle.HIGHEST_PROTOCOL) if found else b""

    def _states(self, yielded: int) -> dict[str, Any]:
        try:
            dataset = _dumps(self._dataset.state_dict()) if self._dataset is not None else b""
            iterator = _dumps(self._iterator.state_dict()) if self._iterator is not None else b""
        except Exception as error:  # noqa: BLE001 - user code; reported when the state is asked for
            return {"problem": f"{type(error).__name__}: {error}"}
        return {"dataset": dataset, "iterator": iterator, "state_at": yielded, "problem": ""}


def _dumps(state: Any) -> bytes:
    try:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - a class of `__main__`
        data: bytes = classes.dumps(state)
        return data


def load_dataset(dataset: Any, position: WorkerPosition) -> None:
    """Give a dataset its state, before it is iterated."""
    if position.dataset and is_stateful(dataset):
        dataset.load_state_dict(pickle.loads(position.dataset))


def load_iterator(iterator: Any, position: WorkerPosition) -> int:
    """Give an iterator its state; return how many samples it must still skip."""
    if position.iterator and is_stateful(iterator):
        iterator.load_state_dict(pickle.loads(position.iterator))
        return position.yielded - position.state_at
    return position.yielded - position.state_at if position.dataset else position.yielded


def check_repeats(sample: Any, position: WorkerPosition) -> None:
    """Raise if a stream that was read again gave another sample than before."""
    if position.last and sample is not None and fingerprint(sample) != position.last:
        raise CannotResumeError(
            f"the stream is not repeatable: sample {position.yielded - 1} is not the one yielded in the earlier run, so the "
            "run cannot resume there; give the dataset state_dict() and load_state_dict(), or seed its random generators"
        )


def fingerprint(sample: Any, depth: int = 3) -> int:
    """Return a short hash of a sample's first values; the same in every process, never 0."""
    found = zlib.crc32(type(sample).__name__.encode())
    with contextlib.suppress(Exception):  # user-defined classes
        if isinstance(sample, torch.Tensor):
            found = zlib.crc32(repr((tuple(sample.shape), sample.flatten()[:8].tolist())).encode(), found)
        elif isinstance(sample, (int, float, str, bytes)):
            found = zlib.crc32(repr(sample)[:200].encode("utf-8", "backslashreplace"), found)
        elif isinstance(sample, Mapping) and depth:
            for key, value in list(sample.items())[:4]:
                found = zlib.crc32(b"%d" % fingerprint(value, depth - 1), zlib.crc32(repr(key).encode(), found))
        elif isinstance(sample, (list, tuple)) and depth:
            for value in sample[:4]:
                found = zlib.crc32(b"%d" % fingerprint(value, depth - 1), found)
        elif hasattr(sample, "ravel"):
            found = zlib.crc32(repr(sample.ravel()[:8].tolist()).encode(), found)
    return found or 1


def as_plain(position: WorkerPosition) -> dict[str, Any]:
    """Return a position for a checkpoint: texts, numbers, and the dataset's states as it gave them."""
    if position.problem:
        raise CannotResumeError(f"the dataset's state could not be saved: {position.problem}")
    found: dict[str, Any] = {
        "yielded": position.yielded,
        "state_at": position.state_at,
        "last": position.last,
        "ended": position.ended,
    }
    found["random"] = {name: random_state.as_text(state) for name, state in position.random.items()}
    if position.start and position.yielded:
        found["start"] = {name: random_state.as_text(state) for name, state in position.start.items()}
    for name in ("dataset", "iterator"):
        if getattr(position, name):
            found[name] = pickle.loads(getattr(position, name))
    return found


def from_plain(plain: Mapping[str, Any]) -> WorkerPosition:
    """Read what `as_plain` wrote."""
    return WorkerPosition(
        random={name: random_state.from_text(text) for name, text in plain.get("random", {}).items()},
        start={name: random_state.from_text(text) for name, text in plain.get("start", {}).items()},
        dataset=_dumps(plain["dataset"]) if "dataset" in plain else b"",
        iterator=_dumps(plain["iterator"]) if "iterator" in plain else b"",
        state_at=plain["state_at"],
        yielded=plain["yielded"],
        last=plain["last"],
        ended=plain["ended"],
    )
