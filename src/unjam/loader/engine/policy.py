"""What becomes of a sample that failed."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Decision(str, enum.Enum):
    """What a policy can say; also what a user's own function may return."""

    RAISE = "raise"
    SKIP = "skip"
    REPLACE = "replace"
    RETRY = "retry"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's `on_error`, as a worker needs it. `always` is None where a function of the user's is to be asked.

    `retries` bounds every policy that retries, so that no sample is tried for ever.
    """

    always: Decision | None = Decision.RAISE
    retries: int = 3

    @property
    def may_replace(self) -> bool:
        """Whether another sample may take a failed one's place."""
        return self.always in (Decision.REPLACE, None)

    def decide(self, tries: int) -> Decision | None:
        """What to do about a sample that has failed `tries` times; None: ask."""
        if self.always is Decision.RETRY:
            return self.bounded(Decision.RETRY, tries)
        return self.always

    def bounded(self, decision: Decision, tries: int) -> Decision:
        """A decision to retry holds for `retries` times; then the failure is raised."""
        if decision is Decision.RETRY and tries > self.retries:
            return Decision.RAISE
        return decision
