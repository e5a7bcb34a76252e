"""What becomes of a failed sample where a worker cannot decide it: the user's own function, and samples that ended a worker."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from unjam.errors import SampleError
from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.worker.exceptions import ExceptionRecord, add_notes
from unjam.loader.worker.job import Failed


class Court:
    """Applies the policy in the training process."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        # the user's own `on_error`, only while somebody asks for a batch
        self.function: Callable[[SampleError], Any] | None = None
        # failures whose samples were left out of a batch that is being made again, by batch
        self._convicted: dict[int, list[Failed]] = {}
        # what the user's own function raised, by batch
        self._broken: dict[int, BaseException] = {}

    def ask(self, batch: int, failed: Failed) -> Decision:
        """What the user's function says; an exception in it takes the batch's place."""
        assert self.function is not None, "nobody to ask"
        try:
            answer = self.function(error_of(failed))
        except Exception as problem:  # noqa: BLE001 - it is raised where the batch is due
            # without its frames, which hold the iterator
            text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
            problem.__context__ = None
            add_notes(problem, (f"raised in on_error:\n{text}",))
            self._broken[batch] = problem.with_traceback(None)
            return Decision.RAISE
        try:
            return Decision(answer)
        except ValueError:
            self._broken[batch] = TypeError(
                f"on_error returned {answer!r}; it may return 'raise', 'skip', 'replace' or 'retry'"
            )
            return Decision.RAISE

    def decide(self, batch: int, failed: Failed) -> Decision:
        """About a sample that ended its worker."""
        decision = self.policy.decide(failed.tries)
        if decision is None:
            decision = self.policy.bounded(self.ask(batch, failed), failed.tries)
        return decision

    def knows(self, batch: int) -> bool:
        """Whether anything about a batch waits here."""
        return batch in self._convicted or batch in self._broken

    def convict(self, batch: int, failed: Failed) -> None:
        """Remember a failure whose batch is made again without its sample."""
        self._convicted.setdefault(batch, []).append(failed)

    def forget(self, batch: int) -> None:
        """A batch will not be delivered."""
        self._convicted.pop(batch, None)
        self._broken.pop(batch, None)

    def close(self, batch: int, failures: list[Failed]) -> tuple[list[SampleError], BaseException | None]:
        """A batch is due: everything that failed in it, and what the user's own function raised, if it did."""
        convicted = {failed.position: failed for failed in self._convicted.pop(batch, [])}
        settled = []
        for failed in failures:
            known = convicted.pop(failed.position, None) if failed.exception is None else None
            if known is not None:
                known.decision, known.replacement, known.note = failed.decision, failed.replacement, failed.note
            settled.append(known or failed)
        settled = [*convicted.values(), *settled]
        return [error_of(failed) for failed in settled if failed.exception is not None], self._broken.pop(batch, None)


def error_of(failed: Failed) -> SampleError:
    """A failure with its exception as it was."""
    exception = failed.exception
    assert exception is not None, "a failure without an exception"
    return failed.as_error(exception.restore() if isinstance(exception, ExceptionRecord) else exception)
