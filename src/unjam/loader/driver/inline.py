"""`num_workers=0`: the training process makes each batch on demand, so there is no engine."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from unjam.errors import SampleError, TooManyErrorsError
from unjam.loader.device import structure
from unjam.loader.device.mover import Mover
from unjam.loader.device.transfer import Transfer
from unjam.loader.driver.consumer_lock import ConsumerLock
from unjam.loader.driver.epoch_progress import EpochProgress
from unjam.loader.driver.index_source import IndexSource
from unjam.loader.driver.on_error import OnErrorPolicy
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.engine.policy import Decision
from unjam.loader.pool.batch_result import BatchReport
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.collating import checked, is_default
from unjam.loader.transport.status_page import ARMED
from unjam.loader.worker.failure_policy import RecoveryContext
from unjam.loader.worker.fetching import make_fetcher
from unjam.loader.worker.job import BatchJob, Emptied, IterableEnded, RaiseFailure, SampleFailure
from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.progress import WorkerPosition
from unjam.loader.worker.spec import WorkerInput, WorkerSpec
from unjam.loader.worker.transforms import Transforms
from unjam.system.random_state import isolated_random_state
from unjam.system.torch_private import pin_memory


class InlineContext(RecoveryContext):
    """What recovery needs when there is no worker: it asks the user's function directly."""

    def __init__(self, decide: Callable[[int, SampleFailure], Decision], warn_once: Callable[[str], None]) -> None:
        self.words = [0] * (ARMED + 1)
        self.heartbeat = lambda *_: None  # nothing watches inline loading
        self._decide = decide
        self._warn_once = warn_once

    @override
    def warn_once(self, text: str) -> None:
        self._warn_once(text)

    @override
    def ask(self, job: BatchJob, failed: SampleFailure) -> Decision:
        return self._decide(job.batch, failed)

    def start_over(self) -> None:
        """Do nothing: nothing was written."""


class InlineDriver:
    """Makes batches in the training process. `pin`: (device,) if the user wants pinned memory."""

    def __init__(
        self,
        worker_input: WorkerInput,
        spec: WorkerSpec,
        settings: DriverSettings,
        recorder: Recorder,
        reports: WorkerReports,
        pin: tuple[str | None] | None,
        progress: EpochProgress,
        mover: Mover | None,
    ) -> None:
        self._mover = mover
        self._transfer = mover or Transfer()
        self._on_error = OnErrorPolicy(settings.policy, recorder)
        context = InlineContext(self._on_error.ask, reports.warn_once)
        collate = worker_input.collate_fn
        tolerant = collate if is_default(collate) else None
        self._fetcher = make_fetcher(worker_input, spec, context, collate=checked(collate), tolerant=tolerant)
        self._indices = IndexSource(settings, spares=settings.policy.may_replace)
        self._batched = settings.batched
        self._recorder = recorder
        self._pin = pin
        # with seeds of its own for each sample, loading must leave the program's generators as they are
        self._isolates = spec.sample_seed is not None
        self._progress = progress
        self._indices.begin(progress)
        self._note()  # the dataset is the program's own object, and may be at its end
        # drawn but not made yet: Ctrl-C must not lose it
        self._pending_request: BatchRequest | None = None
        self._made: tuple[BatchJob, Any, bool, bool] | None = None  # made but not delivered, for the same reason
        self._number = 0
        self.lock = ConsumerLock()
        self.closed = False
        self._transforms: Transforms | None = None
        recorder.begin(None, 0, settings.expected)
        if recorder.profiler is not None:
            self._transforms = Transforms({"dataset": worker_input.dataset, "collate_fn": collate})
            weakref.finalize(self, self._transforms.remove).atexit = False
            weakref.finalize(self, recorder.profiler.stop).atexit = False
        if settings.sample_timeout is not None:
            recorder.say("inline", "sample_timeout needs workers: nothing can stop a sample in this process")
        if self._fetcher.reread_samples:
            reports.reread(self._fetcher.reread_samples, self._fetcher.reread_seconds)

    def next(
        self,
        draw: Callable[[], Any],
        function: Callable[[SampleError], Any] | None = None,
        on_device: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Return the next batch or raise its error; StopIteration at the end of the epoch."""
        self.lock.enter(lambda: self.closed)
        self._indices.draw, self._on_error.function = draw, function
        self._transfer.on_device = on_device
        try:
            return self._next()
        finally:
            self._indices.draw = self._on_error.function = None
            self._transfer.on_device = None
            self.lock.leave()

    def close(self) -> None:
        """Make no more batches."""
        self.closed = True
        self._pending_request = self._made = None
        self._transfer.close()

    def _next(self) -> Any:
        begun = time.monotonic_ns()
        while not self.closed:
            if self._pending_request is None:
                try:
                    self._pending_request = self._indices.next(self._number)
                    self._number += 1
                except StopIteration:
                    self._end()
                    break
            request = self._pending_request
            if self._made is None:
                self._made = self._make(request)
            if self._made is None:
                break  # the stream has ended
            job, data, empty, raises = self._made
            failed = None
            if not (empty or raises):
                try:
                    data = self._transferred(request, data)
                except Exception as error:  # noqa: BLE001 - raised below
                    failed = error
            self._pending_request = self._made = None
            self._indices.undelivered = None
            self._progress.finish_batch(request, delivered=not (empty or raises or failed))
            self._note()
            if job.failures or empty or raises:
                problem = self._on_error.finish_batch(request.batch, job.failures, empty=empty, raises=raises)
                if isinstance(problem, TooManyErrorsError):
                    self.close()
                if problem is not None:
                    raise problem
                if empty:
                    continue
            if failed is not None:
                raise failed
            return self._deliver(request, job, data, begun)
        problem = self._recorder.ended()
        raise problem or StopIteration

    def _note(self) -> None:
        position = self._progress.worker_positions.get(0, WorkerPosition()).after(self._fetcher.position_update())
        self._progress.made_by(0, position)

    def _end(self) -> None:
        if not self._progress.finished:
            self._note()
            self._progress.end(self._progress.worker_positions)

    def _make(self, request: BatchRequest) -> tuple[BatchJob, Any, bool, bool] | None:
        """Make a batch: what is known of it, the batch, whether it is empty, whether it raises. None: the stream has ended."""
        job = BatchJob(request.batch, request.number, request.index, request.spares, batched=self._batched)
        try:
            with isolated_random_state() if self._isolates else contextlib.nullcontext():
                return job, self._fetcher.fetch(job), False, False
        except IterableEnded as end:
            self.close()
            self._end()
            problem = self._on_error.finish_iterable(request.batch, job.failures, None, cut_short=end.cut_short)
            if problem is not None:
                raise problem from None
            return None
        except Emptied:
            return job, None, True, False
        except RaiseFailure:
            return job, None, False, True

    def _transferred(self, request: BatchRequest, data: Any) -> Any:
        mover = self._mover
        if mover is None:
            return self._transfer.finish(data if self._pin is None else pin_memory(data, *self._pin))
        mover.advance()
        mover.requests = {request.batch: request}
        try:
            return mover.hand_over(mover.move(data, None))
        except Exception as error:
            nbytes = sum(one.nbytes for one in structure.tensors(data))
            raise mover.failure(request.batch, nbytes, error) from error

    def _deliver(self, request: BatchRequest, job: BatchJob, data: Any, begun: int) -> Any:
        # Nothing is pickled here; add the last two stamps so that the format is the same as a
        # worker's.
        now = time.monotonic_ns()
        job.stamps += (now, now)
        report = BatchReport(job.samples, 0, job.times())
        if self._transforms is not None:
            report.profile = self._transforms.take()
        self._recorder.delivered(request, report, now - begun)
        return data
