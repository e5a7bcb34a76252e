"""Recovery from a failed sample: raise, skip, replace or retry, as the `on_error` policy decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from unjam.loader.engine.policy import Decision
from unjam.loader.transport.status_page import STOP, Stage
from unjam.loader.worker.batch_culprit import contains
from unjam.loader.worker.failure_policy import FailurePolicy
from unjam.loader.worker.job import BatchJob, Interrupted, SampleFailure

# replacements to try for one failed sample
MOST_REPLACEMENTS = 8
# raise after this many failures of an iterator in a row, without a sample between them
MOST_IN_A_ROW = 100


class SampleRecovery:
    """Handles failed samples, of a map-style dataset or of a stream."""

    def __init__(self, failures: FailurePolicy) -> None:
        self._failures = failures
        self._in_a_row, self._stuck_at = 0, -1

    # -- one sample --------------------------------------------------------------------------------------------------

    def recover_sample(
        self,
        job: BatchJob,
        position: int,
        index: Any,
        error: BaseException,
        data: list[Any],
        load: Callable[[Any], Any],
    ) -> None:
        """Handle a failed sample: append one or nothing to `data`, or raise `RaiseFailure`."""
        failures = self._failures
        if position < 0 or len(data) + len(job.absent) > position:
            raise error  # not a sample: iterating over the indices raised
        tries = 1
        while True:
            failed = failures.describe(job, "getitem", error, position=position, index=index, tries=tries)
            match failures.decide(job, failed, error):
                case Decision.RAISE:
                    failures.raise_failure(job, failed)
                case Decision.SKIP:
                    failures.record(job, failed, Decision.SKIP)
                    job.absent.add(position)
                    return
                case Decision.REPLACE:
                    self.replace(job, failed, data, load)
                    return
                case Decision.RETRY:
                    failures.pause(job, position, tries)
                    tries += 1
                    try:
                        data.append(load(index))
                    except BaseException as again:  # noqa: BLE001 - user code; decided above
                        error = again
                        continue
                    failures.record(job, failed, Decision.RETRY)
                    return

    def replace(self, job: BatchJob, failed: SampleFailure, data: list[Any], load: Callable[[Any], Any]) -> None:
        """Replace with a sample of this batch or a recent one: only indices from the sampler."""
        position = failed.position
        for candidate in self._candidates(job, position):
            self._failures.context.heartbeat(Stage.GETITEM, job.batch, position)
            try:
                data.append(load(candidate))
            except Exception:  # noqa: BLE001 - it is reported at its own position
                job.rejected.append(candidate)
                continue
            failed.replacement = job.replaced[position] = candidate
            self._failures.record(job, failed, Decision.REPLACE)
            return
        failed.note = "no replacement was found"
        self._failures.record(job, failed, Decision.SKIP)
        job.absent.add(position)

    def _candidates(self, job: BatchJob, position: int) -> list[Any]:
        """Return replacements; the order depends only on seed, batch and position: repeatable."""
        rng = random.Random(f"{self._failures.spec.base_seed} {job.number} {position}")  # noqa: S311 - not for security
        others = [index for at, index in enumerate(job.indices()) if at != position and at not in job.decisions]
        spares = list(job.spares)
        rng.shuffle(others)
        rng.shuffle(spares)
        return [index for index in others + spares if not contains(index, job.rejected)][:MOST_REPLACEMENTS]

    # -- a stream ----------------------------------------------------------------------------------------------------

    def recover_stream(
        self, job: BatchJob, yielded: int, error: BaseException, data: list[Any], iterator: Iterator[Any]
    ) -> bool:
        """Handle a failure of an iterable; return whether it has ended."""
        failures, tries = self._failures, 1
        while True:
            if failures.context.words[STOP]:
                raise Interrupted
            # An iterator may raise for ever, e.g. after a lost connection.
            self._in_a_row = self._in_a_row + 1 if yielded == self._stuck_at else 1
            self._stuck_at = yielded
            failed = failures.describe(job, "iter", error, yielded=yielded, tries=tries)
            decision = failures.decide(job, failed, error)
            if self._in_a_row >= MOST_IN_A_ROW and decision is not Decision.RAISE:
                failed.note = f"it failed {self._in_a_row} times in a row"
                decision = Decision.RAISE
            if decision is Decision.RAISE:
                failures.raise_failure(job, failed)
            if decision is Decision.SKIP:
                failures.record(job, failed, Decision.SKIP)
                return False
            if decision is Decision.RETRY:
                failures.pause(job, len(data), tries)
            tries += 1
            try:
                data.append(next(iterator))
            except StopIteration:
                if decision is Decision.RETRY:
                    failures.raise_failure(job, failed)
                failed.note = "its iterable ended there"
                failures.record(job, failed, Decision.SKIP)
                return True
            except BaseException as again:  # noqa: BLE001 - user code; decided above
                if decision is Decision.REPLACE:
                    failures.record(job, failed, Decision.SKIP)
                error = again
                continue
            failures.record(job, failed, decision)
            return False
