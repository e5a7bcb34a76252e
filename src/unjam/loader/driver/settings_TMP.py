"""What the feed is told by the iterator, and what it tells it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unjam.errors import SampleError
from unjam.loader.engine.policy import Policy


class CannotLoad(Exception):
    """A worker could not rebuild the dataset that it was sent; `drawn` are the indices that were drawn for nothing."""

    def __init__(self, error: BaseException, drawn: list[Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.drawn = drawn


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. `expected`: samples in an epoch, if anybody knows."""

    policy: Policy = Policy()  # noqa: RUF009 - frozen
    timeout: float = 0
    sample_timeout: float | None = None
    warn_after: float | None = None
    expected: int | None = None
    batched: bool = True
    # where random numbers belong to the batch: what they are made from
    seed: int | None = None


def listed(index: Any) -> tuple[Any, ...]:
    """A batch's indices as they are now."""
    try:
        return tuple(index)
    except TypeError:
        return (index,)


def interrupted() -> RuntimeError:
    """A generator in which an exception was raised has ended: without this, the epoch would end early without a word."""
    return RuntimeError(
        "the sampler was interrupted by an exception from a signal handler and cannot go on: begin a new epoch"
    )


def stopped(error: SampleError) -> RuntimeError:
    """What stands for a StopIteration, which would end the epoch."""
    problem = RuntimeError(f"the dataset raised StopIteration: {error.place}")
    problem.__cause__ = error.exception
    return problem
