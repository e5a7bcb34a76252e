"""What the feed is told by the iterator, and what it tells it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unjam.engine.policy import Policy


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
