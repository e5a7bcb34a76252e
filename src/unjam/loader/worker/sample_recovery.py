"""Recovery from a failed sample: raise, skip, replace or retry, as the on_error policy decides.

The worker describes a failure where it happens and sends it with its batch. So a batch that is made
again because its worker died reports nothing twice.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from unjam.deadlines import RETRY_FIRST, RETRY_MOST
from unjam.errors import place
from unjam.loader.engine.policy import Decision
from unjam.loader.transport.status_page import SINCE, STOP, Stage
from unjam.loader.worker.batch_culprit import among
from unjam.loader.worker.exceptions import add_notes, record, twin
from unjam.loader.worker.job import BatchJob, Interrupted, RaiseFailure, SampleFailure
from unjam.loader.worker.spec import WorkerSpec

# replacements to try for one failed sample
MOST_REPLACEMENTS = 8
# raise after this many failures of an iterator in a row, without a sample between them
MOST_IN_A_ROW = 100


class FatalSample(Exception):
    """This sample killed a worker before, and the parent has already decided what to do."""

    def __init__(self, decision: str) -> None:
        super().__init__(decision)
        self.decision = decision


class RecoveryContext(Protocol):
    """What recovery needs from its process."""

    @property
    def words(self) -> Any:
        """The words of the status page."""

    def heartbeat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Record what we do next."""

    def ask(self, job: BatchJob, failed: SampleFailure) -> Decision:
        """Ask the user's on_error function."""

    def warn_once(self, text: str) -> None:
        """Warn the user, once, about something that is not a failure."""

    def start_over(self) -> None:
        """Discard what was written of the batch so far."""


class SampleRecovery:
    """Applies the on_error policy to failed samples; `BatchRecovery` adds whole batches."""

    def __init__(self, spec: WorkerSpec, dataset: Any, context: RecoveryContext) -> None:
        self._policy = spec.policy
        self._spec = spec
        self._dataset = dataset
        self._context = context
        self._in_a_row, self._stuck_at = 0, -1
        # never set: used for its wait() with a timeout
        self._pauses = threading.Event()

    @property
    def only_raises(self) -> bool:
        """Whether the policy raises every failure."""
        return self._policy.always is Decision.RAISE

    # -- one sample --------------------------------------------------------------------------------------------------

    def sample(
        self,
        job: BatchJob,
        position: int,
        index: Any,
        error: BaseException,
        data: list[Any],
        load: Callable[[Any], Any],
    ) -> None:
        """Handle a failed sample: append one or nothing to `data`, or raise `RaiseFailure`."""
        if position < 0 or len(data) + len(job.absent) > position:
            raise error  # not a sample: iterating over the indices raised
        tries = 1
        while True:
            failed = self._describe(job, "getitem", error, position=position, index=index, tries=tries)
            match self._decide(job, failed, error):
                case Decision.RAISE:
                    self._surrender(job, failed)
                case Decision.SKIP:
                    self._note(job, failed, Decision.SKIP)
                    job.absent.add(position)
                    return
                case Decision.REPLACE:
                    self._replace(job, failed, data, load)
                    return
                case Decision.RETRY:
                    self._pause(job, position, tries)
                    tries += 1
                    try:
                        data.append(load(index))
                    except BaseException as again:  # noqa: BLE001 - user code; decided above
                        error = again
                        continue
                    self._note(job, failed, Decision.RETRY)
                    return

    def _replace(self, job: BatchJob, failed: SampleFailure, data: list[Any], load: Callable[[Any], Any]) -> None:
        """Replace with a sample of this batch or a recent one: only indices from the sampler."""
        position = failed.position
        for candidate in self._candidates(job, position):
            self._context.heartbeat(Stage.GETITEM, job.batch, position)
            try:
                data.append(load(candidate))
            except Exception:  # noqa: BLE001 - it is reported at its own position
                job.rejected.append(candidate)
                continue
            failed.replacement = job.replaced[position] = candidate
            self._note(job, failed, Decision.REPLACE)
            return
        failed.note = "nothing could be found to take its place"
        self._note(job, failed, Decision.SKIP)
        job.absent.add(position)

    def _candidates(self, job: BatchJob, position: int) -> list[Any]:
        """Return replacements; the order depends only on seed, batch and position: repeatable."""
        rng = random.Random(f"{self._spec.base_seed} {job.number} {position}")  # noqa: S311 - not for security
        others = [index for at, index in enumerate(job.indices()) if at != position and at not in job.decisions]
        spares = list(job.spares)
        rng.shuffle(others)
        rng.shuffle(spares)
        return [index for index in others + spares if not among(index, job.rejected)][:MOST_REPLACEMENTS]

    # -- a stream ----------------------------------------------------------------------------------------------------

    def stream(
        self, job: BatchJob, yielded: int, error: BaseException, data: list[Any], iterator: Iterator[Any]
    ) -> bool:
        """Handle a failure of an iterable; return whether it has ended."""
        tries = 1
        while True:
            if self._context.words[STOP]:
                raise Interrupted
            # An iterator may raise for ever, e.g. after a lost connection.
            self._in_a_row = self._in_a_row + 1 if yielded == self._stuck_at else 1
            self._stuck_at = yielded
            failed = self._describe(job, "iter", error, yielded=yielded, tries=tries)
            decision = self._decide(job, failed, error)
            if self._in_a_row >= MOST_IN_A_ROW and decision is not Decision.RAISE:
                failed.note = f"it failed {self._in_a_row} times in a row"
                decision = Decision.RAISE
            if decision is Decision.RAISE:
                self._surrender(job, failed)
            if decision is Decision.SKIP:
                self._note(job, failed, Decision.SKIP)
                return False
            if decision is Decision.RETRY:
                self._pause(job, len(data), tries)
            tries += 1
            try:
                data.append(next(iterator))
            except StopIteration:
                if decision is Decision.RETRY:
                    self._surrender(job, failed)
                failed.note = "its iterable ended with that"
                self._note(job, failed, Decision.SKIP)
                return True
            except BaseException as again:  # noqa: BLE001 - user code; decided above
                if decision is Decision.REPLACE:
                    self._note(job, failed, Decision.SKIP)
                error = again
                continue
            self._note(job, failed, decision)
            return False

    # -- inside ------------------------------------------------------------------------------------------------------

    def _decide(self, job: BatchJob, failed: SampleFailure, error: BaseException) -> Decision:
        if isinstance(error, FatalSample):
            return Decision(error.decision)
        if self._spec.inline and not isinstance(error, Exception):
            raise error  # Ctrl-C, sys.exit(): not ours to handle
        decision = self._policy.decide(failed.tries)
        if decision is None:
            decision = self._policy.bounded(self._context.ask(job, failed), failed.tries)
        return decision

    def _describe(
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
        alone = position >= 0 or yielded is not None
        indices = () if alone or self._spec.iterable else job.remaining()
        since = self._context.words[SINCE]
        failed = SampleFailure(
            position=position,
            index=None if self._spec.iterable else index,
            batch=job.number,
            worker=self._spec.number,
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
        where = place(failed.index, job.number, self._spec.number, yielded=yielded, indices=indices)
        how = f"in {stage}, {failed.seconds:.2f} s after it began" + (f", try {tries}" if tries > 1 else "")
        notes = (where, *extra, *((f"the dataset calls it {failed.key}",) if failed.key else ()), how)
        failed.exception = self._keep(error, notes)
        return failed

    def _keep(self, error: BaseException, notes: tuple[str, ...]) -> Any:
        if self._spec.inline:
            add_notes(error, notes)
            return error
        return record(error, notes, by_value=self._spec.by_value)

    def _key_of(self, failed: SampleFailure) -> str | None:
        if self._spec.iterable or failed.index is None:
            return None
        from unjam.loader import sample_key  # noqa: PLC0415 - only when something fails

        return sample_key.key_of(self._dataset, failed.index)

    def _note(self, job: BatchJob, failed: SampleFailure, decision: Decision) -> None:
        failed.decision = decision
        if decision is not Decision.RAISE and isinstance(failed.exception, BaseException):
            # The frames of the original keep alive everything that the failed call held.
            failed.exception = twin(failed.exception)
        if failed.index is not None and decision is not Decision.RETRY:
            job.rejected.append(failed.index)
        job.failures.append(failed)

    def _surrender(self, job: BatchJob, failed: SampleFailure) -> NoReturn:
        self._note(job, failed, Decision.RAISE)
        raise RaiseFailure

    def _pause(self, job: BatchJob, position: int, tries: int) -> None:
        """Wait before another try, longer each time; the parent can interrupt it."""
        context = self._context
        context.heartbeat(Stage.RETRYING, job.batch, position)
        until = time.monotonic() + min(RETRY_FIRST.seconds * 2 ** (tries - 1), RETRY_MOST.seconds)
        while (left := until - time.monotonic()) > 0:
            if context.words[STOP]:
                raise Interrupted
            self._pauses.wait(min(left, RETRY_FIRST.seconds))
        context.heartbeat(Stage.GETITEM, job.batch, position)
