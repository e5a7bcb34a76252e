"""What failed on the way to a batch is written down when the batch is due; and what is to be raised in its place."""

from __future__ import annotations

from unjam.loader.driver.on_error import Court
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings_TMP import stopped
from unjam.loader.worker.job import Failed


def settle(
    court: Court, recorder: Recorder, batch: int, failures: list[Failed], *, empty: bool, raises: bool
) -> BaseException | None:
    """Write down what failed in a batch; return what the policy says is to be raised. `empty`: nothing is left of it."""
    errors, broken = court.close(batch, failures)
    problem: BaseException | None = None
    for error in errors:
        problem = recorder.failed(error) or problem
    if empty:
        recorder.emptied()
    if broken is not None:
        broken.__cause__ = errors[-1].exception if errors else None
        return broken
    if problem is None and raises:
        # StopIteration, let through, would end the epoch early without a word
        stop = isinstance(errors[-1].exception, StopIteration)
        problem = stopped(errors[-1]) if stop else errors[-1].exception
    return problem


def settle_end(
    court: Court, recorder: Recorder, batch: int, failures: list[Failed], worker: int, *, cut_short: bool
) -> BaseException | None:
    """An iterable has ended; what failed since its last batch has no batch to travel with."""
    errors, broken = court.close(batch, failures)
    problem: BaseException | None = broken
    for error in errors:
        problem = recorder.failed(error) or problem
    if cut_short:
        recorder.say(
            "cut short",
            "the iterable of worker %d ended right after a sample that failed: a generator cannot go on after an "
            "exception, and what it had still to yield is missing",
            worker,
        )
    return problem
