"""What to do about a failed sample."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Decision(str, enum.Enum):
    """The decisions of a policy; the user's function may return the same words."""

    RAISE = "raise"
    SKIP = "skip"
    REPLACE = "replace"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's `on_error`, as a worker needs it. `always`: None if a function must be asked.

    `retries` limits every policy that retries, so that no sample is tried for ever.
    """

    always: Decision | None = Decision.RAISE
    retries: int = 3

    @property
    def may_replace(self) -> bool:
        """Whether another sample may replace a failed one."""
        return self.always in (Decision.REPLACE, None)

    def decide(self, tries: int, ask: Callable[[], Decision]) -> Decision:
        """What to do about a sample that failed `tries` times. `ask`: calls the user's function."""
        decision = ask() if self.always is None else self.always
        return Decision.RAISE if decision is Decision.RETRY and tries > self.retries else decision
