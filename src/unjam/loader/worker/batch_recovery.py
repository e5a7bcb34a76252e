"""Recovery from a failure of a whole batch: collate failed, or `__getitems__` failed."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from unjam.loader.engine.policy import Decision
from unjam.loader.transport.status_page import Stage
from unjam.loader.worker.batch_culprit import describe_outliers, explained, named_in_traceback, type_of
from unjam.loader.worker.failure_policy import FailurePolicy
from unjam.loader.worker.job import BatchJob, Emptied, RaiseFailure, SampleFailure
from unjam.loader.worker.sample_recovery import SampleRecovery
from unjam.system.random_state import isolated_random_state

# how often we collate one batch again after removing or replacing outliers
MOST_ROUNDS = 64


class BatchRecovery:
    """Handles failures of whole batches; `samples` replaces samples that do not fit.

    `tolerant`: torch's default collate without our checks; None if the user has another collate_fn.
    """

    def __init__(
        self, failures: FailurePolicy, samples: SampleRecovery, *, tolerant: Callable[[Any], Any] | None
    ) -> None:
        self._failures, self._samples = failures, samples
        self._spec, self._dataset, self._context = failures.spec, failures.dataset, failures.context
        # loads a sample again; the fetcher seeds the generators first if random numbers belong to the sample
        self.load: Callable[[Any], Any] = partial(operator.getitem, failures.dataset)
        self._tolerant = tolerant
        self._strict = tolerant is not None

    def cannot_collate(
        self, job: BatchJob, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """Collate failed: use the samples that fit, if the policy allows."""
        if self._failures.only_raises:
            if self._tolerant is None:
                self.fail_batch(job, "collate", error, describe_outliers(job, data, iterable=self._spec.iterable))
            else:
                with contextlib.suppress(Exception):  # torch cannot collate it either
                    self._context.start_over()
                    batch = self._tolerant(data)
                    words = (
                        "; ".join(describe_outliers(job, data, iterable=self._spec.iterable)) or "the samples differ"
                    )
                    self._context.warn_once(
                        f"{error.args[0]}: {words}; they were collated anyway, as torch does without a warning"
                    )
                    return batch
        return self._without_outliers(job, data, error, collate)

    def _without_outliers(
        self, job: BatchJob, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """Find the samples that do not fit, apply the policy to each, and collate again."""
        from unjam.loader.failures import outlier  # noqa: PLC0415 - only when something fails

        if self._spec.inline and not isinstance(error, Exception):
            raise error
        tried: dict[int, SampleFailure] = {}
        for _ in range(MOST_ROUNDS + self._failures.policy.retries):
            # A user's collate_fn may have changed the samples before it failed: load them again.
            with isolated_random_state():
                fresh = self._strict or self._reload(job, data)
                odd = outlier.find(data, collate, strict=self._strict, fresh=fresh)
            if not odd:
                self.fail_batch(job, "collate", error)
                raise Emptied
            places = job.kept(len(data))
            for one in reversed(odd):
                position = places[one.place]
                words = one.words([f"sample {job.index_at(at)!r}" for at in places], self._spec.iterable)
                shown, extra = (explained(error, words), ()) if self._strict else (error, (words,))
                index, tries = job.index_at(position), tried[position].tries + 1 if position in tried else 1
                failed = self._failures.describe(
                    job, "collate", shown, position=position, index=index, tries=tries, extra=extra
                )
                decision = self._failures.decide(job, failed, error)
                if decision is Decision.RAISE or (decision is Decision.RETRY and self._spec.iterable):
                    self._failures.raise_failure(job, failed)
                if decision is Decision.RETRY:
                    tried[position] = failed
                    self._failures.pause(job, position, tries)
                    with contextlib.suppress(Exception):  # it stays an outlier
                        data[one.place] = self.load(index)
                    continue
                tried.pop(position, None)
                del data[one.place]
                if decision is Decision.REPLACE and not self._spec.iterable:
                    earlier = next((known for known in job.failures if known.position == position), None)
                    if earlier is not None:
                        # The replacement does not fit either: try another one.
                        job.failures.remove(earlier)
                        job.rejected.append(failed.index)
                        failed = earlier
                    self._replace_in_place(job, failed, data, one.place)
                else:
                    self._failures.record(job, failed, Decision.SKIP)
                    job.absent.add(position)
            if not data:
                raise Emptied
            self._context.start_over()
            self._context.heartbeat(Stage.COLLATE, job.batch)
            try:
                batch = collate(data)
            except BaseException as again:  # noqa: BLE001 - user code; decided above
                error = again
                continue
            for cured in tried.values():
                self._failures.record(job, cured, Decision.RETRY)
            return batch
        self.fail_batch(job, "collate", error)
        raise Emptied

    def _reload(self, job: BatchJob, data: list[Any]) -> bool:
        if self._spec.iterable:
            return False
        try:
            data[:] = [self.load(job.index_at(position)) for position in job.kept(len(data))]
        except Exception:  # noqa: BLE001 - user code; the samples stay as they are
            return False
        return True

    def _replace_in_place(self, job: BatchJob, failed: SampleFailure, data: list[Any], place_in_data: int) -> None:
        found: list[Any] = []
        self._samples.replace(job, failed, found, self.load)
        data[place_in_data:place_in_data] = found

    def cannot_load(self, job: BatchJob, error: BaseException) -> None:
        """Handle a failed `__getitems__`: raise `RaiseFailure`, or record the skipped batch."""
        position, words = named_in_traceback(error, self._dataset, job)
        if position < 0 or not self._failures.only_raises:
            self.fail_batch(job, "getitem", error, words)
            return
        self._failures.raise_failure(
            job, self._failures.describe(job, "getitem", error, position=position, index=job.index_at(position))
        )

    def fail_batch(self, job: BatchJob, stage: str, error: BaseException, extra: tuple[str, ...] = ()) -> None:
        """Handle a failure of a whole batch: raise `RaiseFailure`, or record the skipped batch."""
        failed = self._failures.describe(job, stage, error, extra=extra)
        if self._failures.decide(job, failed, error) in (Decision.RAISE, Decision.RETRY):
            self._failures.raise_failure(job, failed)
        self._failures.record(job, failed, Decision.SKIP)

    def raise_for_sample(self, job: BatchJob, error: BaseException) -> NoReturn:
        """Raise for a failed `__getitems__` when one sample also failed alone.

        Name that sample only if both errors have the same type.
        """
        culprit = job.failures[-1]
        if culprit.exception is not None and type_of(culprit.exception) != type_of(error):
            job.failures[-1] = self._failures.describe(job, "getitem", error)
            job.failures[-1].decision = Decision.RAISE
        raise RaiseFailure

    def handle_joint_failure(self, job: BatchJob, error: BaseException) -> None:
        """Handle a failed `__getitems__` after each sample loaded alone or was handled."""
        if job.failures:
            return
        failed = self._failures.describe(job, "getitem", error)
        failed.note = "each of its samples loads on its own"
        if self._failures.decide(job, failed, error) is Decision.RAISE:
            self._failures.raise_failure(job, failed)
        self._failures.record(job, failed, Decision.RETRY)
