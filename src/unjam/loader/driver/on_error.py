"""The `on_error` policy in the training process.

A worker applies the fixed policies to its own samples. Here we call the user's function, and decide
about samples that killed their worker. We record the failures of a batch when it is delivered, so they
are recorded in the order of delivery.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from unjam.errors import SampleError
from unjam.loader.driver.recorder import Recorder
from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.worker.exceptions import ExceptionRecord, add_notes
from unjam.loader.worker.job import SampleFailure


class OnErrorPolicy:
    """Decides about failures and returns what to raise for them."""

    def __init__(self, policy: Policy, recorder: Recorder) -> None:
        self.policy = policy
        self._recorder = recorder
        # the user's `on_error` function; set only during `next`
        self.function: Callable[[SampleError], Any] | None = None
        # by batch: failures whose samples are left out while the batch is made again
        self._left_out: dict[int, list[SampleFailure]] = {}
        # by batch: what the user's function raised
        self._broken: dict[int, BaseException] = {}

    def ask(self, batch: int, failed: SampleFailure) -> Decision:
        """Call the user's function; if it raises, its exception replaces the batch."""
        assert self.function is not None, "on_error is not a function"
        try:
            answer = self.function(error_of(failed))
        except Exception as problem:  # noqa: BLE001 - raised when the batch is delivered
            # drop its frames, because they refer to the iterator
            text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
            problem.__context__ = None
            add_notes(problem, (f"raised in on_error:\n{text}",))
            self._broken[batch] = problem.with_traceback(None)
            return Decision.RAISE
        try:
            return Decision(answer)
        except ValueError:
            self._broken[batch] = TypeError(
                f"on_error returned {answer!r}; it must return 'raise', 'skip', 'replace' or 'retry'"
            )
            return Decision.RAISE

    def decide(self, batch: int, failed: SampleFailure) -> Decision:
        """Decide about a sample that killed its worker."""
        return self.policy.decide(failed.tries, lambda: self.ask(batch, failed))

    def leave_out(self, batch: int, failed: SampleFailure) -> None:
        """Remember a failure whose batch is made again without its sample."""
        self._left_out.setdefault(batch, []).append(failed)

    def has_news_of(self, batch: int) -> bool:
        """Return whether anything is recorded about a batch."""
        return batch in self._left_out or batch in self._broken

    def forget(self, batch: int) -> None:
        """Forget a batch that will not be delivered."""
        self._left_out.pop(batch, None)
        self._broken.pop(batch, None)

    def finish_batch(
        self, batch: int, failures: list[SampleFailure], *, empty: bool, raises: bool
    ) -> BaseException | None:
        """Record the failures of a batch; return what to raise. `empty`: no sample is left."""
        errors, broken = self._collect(batch, failures)
        problem: BaseException | None = None
        for error in errors:
            problem = self._recorder.failed(error) or problem
        if empty:
            self._recorder.emptied()
        if broken is not None:
            broken.__cause__ = errors[-1].exception if errors else None
            return broken
        if problem is None and raises:
            # A StopIteration that escapes would end the epoch early, silently.
            stop = isinstance(errors[-1].exception, StopIteration)
            problem = _stopped(errors[-1]) if stop else errors[-1].exception
        return problem

    def finish_iterable(
        self, batch: int, failures: list[SampleFailure], worker: int | None, *, cut_short: bool
    ) -> BaseException | None:
        """Record the failures after the last batch of an iterable that ended; return what to raise."""
        problem = self.finish_batch(batch, failures, empty=False, raises=False)
        if cut_short:
            self._recorder.say(
                "cut short",
                "the iterable%s ended right after a failed sample: a generator cannot continue after an exception, so the "
                "samples that it had not yet yielded are missing",
                "" if worker is None else f" of worker {worker}",
            )
        return problem

    def _collect(self, batch: int, failures: list[SampleFailure]) -> tuple[list[SampleError], BaseException | None]:
        """Return all failures of a batch, and what the user's function raised, if it did."""
        left_out = {failed.position: failed for failed in self._left_out.pop(batch, [])}
        together = []
        for failed in failures:
            known = left_out.pop(failed.position, None) if failed.exception is None else None
            if known is not None:
                known.decision, known.replacement, known.note = failed.decision, failed.replacement, failed.note
            together.append(known or failed)
        together = [*left_out.values(), *together]
        return [error_of(failed) for failed in together if failed.exception is not None], self._broken.pop(batch, None)


def error_of(failed: SampleFailure) -> SampleError:
    """Convert a failure to what the user sees, with the original exception."""
    exception = failed.exception
    assert exception is not None, "a failure without an exception"
    return failed.as_error(exception.restore() if isinstance(exception, ExceptionRecord) else exception)


def _stopped(error: SampleError) -> RuntimeError:
    problem = RuntimeError(f"the dataset raised StopIteration: {error.place}")
    problem.__cause__ = error.exception
    return problem
