"""What happens to every failure in a worker: it is described, decided about and recorded.

The worker describes a failure where it happens and sends it with its batch. So a batch that is made
again because its worker died reports nothing twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from unjam.deadlines import FIRST_RETRY, LONGEST_RETRY
from unjam.errors import place
from unjam.loader.engine.policy import Decision
from unjam.loader.transport.status_page import SINCE, STOP, Stage
from unjam.loader.worker.exceptions import add_notes, record, without_frames
from unjam.loader.worker.job import BatchJob, Interrupted, RaiseFailure, SampleFailure
from unjam.loader.worker.spec import WorkerSpec
from unjam.units import duration


class FatalSample(Exception):
    """This sample killed a worker before, and the parent has already decided what to do."""

    def __init__(self, decision: str) -> None:
        super().__init__(decision)
        self.decision = decision


class RecoveryContext(Protocol):
    """What recovery needs from its process."""

    # of the status page; hot loops write `words` directly, before each sample, to save a call
    words: Any
    # records what we do next: stage, batch and position
    heartbeat: Callable[..., None]

    def ask(self, job: BatchJob, failed: SampleFailure) -> Decision:
        """Ask the user's on_error function."""

    def warn_once(self, text: str) -> None:
        """Warn the user, once, about something that is not a failure."""

    def start_over(self) -> None:
        """Discard what was written of the batch so far."""


class FailurePolicy:
    """Applies the `on_error` policy of one worker; `SampleRecovery` and `BatchRecovery` carry out its decisions."""

    def __init__(self, spec: WorkerSpec, dataset: Any, context: RecoveryContext) -> None:
        self.spec = spec
        self.dataset = dataset
        self.context = context
        self.policy = spec.policy
        # never set: used for its wait() with a timeout
        self._pauses = threading.Event()

    @property
    def only_raises(self) -> bool:
        """Whether the policy raises every failure."""
        return self.policy.always is Decision.RAISE

    def decide(self, job: BatchJob, failed: SampleFailure, error: BaseException) -> Decision:
        """Return the policy's decision; perhaps the user's function makes it."""
        if isinstance(error, FatalSample):
            return Decision(error.decision)
        if self.spec.inline and not isinstance(error, Exception):
            raise error  # Ctrl-C, sys.exit(): not ours to handle
        return self.policy.decide(failed.tries, lambda: self.context.ask(job, failed))

    def describe(
        self,
        job: BatchJob,
        stage: str,
        error: BaseException,
        *,
        position: int = -1,
        index: Any = None,
        tries: int = 1,
        yielded: int | None = None,
        extra: tuple[str, ...] = (),
    ) -> SampleFailure:
        """Return a record of a failure, with notes on the exception."""
        alone = position >= 0 or yielded is not None
        indices = () if alone or self.spec.iterable else job.remaining()
        since = self.context.words[SINCE]
        failed = SampleFailure(
            position=position,
            index=None if self.spec.iterable else index,
            batch=job.number,
            worker=self.spec.number,
            stage=stage,
            seconds=(time.monotonic_ns() - since) / 1e9 if since else 0.0,
            exception=None,
            tries=tries,
            yielded=yielded,
            indices=indices,
            pid=os.getpid(),
        )
        if isinstance(error, FatalSample):
            return failed
        failed.key = self._key_of(failed)
        where = place(failed.index, job.number, self.spec.number, yielded=yielded, indices=indices)
        how = f"in {stage}, {duration(failed.seconds)} after it began" + (f", try {tries}" if tries > 1 else "")
        notes = (where, *extra, *((f"its name in the dataset: {failed.key}",) if failed.key else ()), how)
        failed.exception = self._keep(error, notes)
        return failed

    def _keep(self, error: BaseException, notes: tuple[str, ...]) -> Any:
        if self.spec.inline:
            add_notes(error, notes)
            return error
        return record(error, notes, by_value=self.spec.by_value)

    def _key_of(self, failed: SampleFailure) -> str | None:
        if self.spec.iterable or failed.index is None:
            return None
        from unjam.loader.failures import sample_key  # noqa: PLC0415 - only when something fails

        return sample_key.key_of(self.dataset, failed.index)

    def record(self, job: BatchJob, failed: SampleFailure, decision: Decision) -> None:
        """Add a failure and the decision about it to the job."""
        failed.decision = decision
        if decision is not Decision.RAISE and isinstance(failed.exception, BaseException):
            # The frames of the original keep alive everything that the failed call held.
            failed.exception = without_frames(failed.exception)
        if failed.index is not None and decision is not Decision.RETRY:
            job.rejected.append(failed.index)
        job.failures.append(failed)

    def raise_failure(self, job: BatchJob, failed: SampleFailure) -> NoReturn:
        """Raise a failure in place of the batch."""
        self.record(job, failed, Decision.RAISE)
        raise RaiseFailure

    def pause(self, job: BatchJob, position: int, tries: int) -> None:
        """Wait before another try, longer each time; the parent can interrupt it."""
        context = self.context
        context.heartbeat(Stage.RETRYING, job.batch, position)
        until = time.monotonic() + min(FIRST_RETRY.seconds * 2 ** (tries - 1), LONGEST_RETRY.seconds)
        while (left := until - time.monotonic()) > 0:
            if context.words[STOP]:
                raise Interrupted
            self._pauses.wait(min(left, FIRST_RETRY.seconds))
        context.heartbeat(Stage.GETITEM, job.batch, position)
