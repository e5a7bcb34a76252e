"""Records what a loader did and what failed: counters, `loader.errors`, the error log, logging.

One recorder lives as long as its loader. It keeps a bounded number of failures in memory; the error
log has all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unjam.errors import SampleError, TooManyErrorsError, UnjamError, short, type_name, words_of
from unjam.loader.device.copy_count import CopyCount
from unjam.loader.driver.profiling import Profiler
from unjam.loader.driver.times import Times
from unjam.loader.pool.batch_result import BatchReport
from unjam.loader.pool.protocol import Pool
from unjam.loader.pool.worker_reports import WorkerReports, does_not_pay
from unjam.loader.worker.exceptions import RemoteTraceback, without_frames
from unjam.loader.worker.messages import BatchRequest
from unjam.statistics import Auto, Statistics
from unjam.system.limits import own_processors
from unjam.system.logs import log
from unjam.system.private_files import open_own
from unjam.units import count

if TYPE_CHECKING:
    from unjam.loader.failures.incident import Incident


MOST_KEPT = 1000
# If an epoch's length is unknown, a fraction refers to the samples seen so far, but at least to
# these.
ENOUGH_SEEN = 100


class Recorder:
    """Counts and records. `max_errors`: a number of samples, or a fraction of an epoch."""

    def __init__(self, error_log: str | None, max_errors: float | None, dataset: str, *, profile: bool = False) -> None:
        self._copy = functools.partial(Recorder, error_log, max_errors, dataset, profile=profile)
        # called for every delivered batch
        self.on_delivered: Callable[[BatchRequest, BatchReport], None] | None = None
        self._error_log = error_log
        self._max_errors = max_errors
        self.dataset = dataset
        self.errors: deque[SampleError] = deque(maxlen=MOST_KEPT)
        self.incidents: deque[Incident] = deque(maxlen=MOST_KEPT)
        self.times = Times()
        self._totals: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._said: Counter[str] = Counter()
        self._batches = self._samples = self._bytes = 0
        # samples delivered before this epoch, and samples that failed in it
        self._samples_before = self._failed = 0
        self._epoch_errors: list[SampleError] = []
        self._expected: int | None = None
        self._pool: weakref.ref[Any] | None = None
        self._workers = 0
        self._log_works = True
        # how many seconds each pool took until a worker could load
        self.starts: list[float] = []
        self.auto: Callable[[], Auto] | None = None
        # the number of the epoch, and with rng="sample" the seed of the samples' random numbers
        self.epoch: int | None = None
        self.seed: int | None = None
        self.profiler = Profiler() if profile else None
        self.copies = CopyCount()
        self.reports: WorkerReports | None = None

    def __reduce__(self) -> Any:
        # a copy of a loader has its own record
        return self._copy, ()

    # -- events ------------------------------------------------------------------------------------

    def begin(self, pool: Pool | None, workers: int, expected: int | None) -> None:
        """Begin an epoch of `expected` samples (None: unknown)."""
        self._pool = None if pool is None else weakref.ref(pool)
        self._workers = workers
        self._expected = expected
        self._totals["epochs"] += 1
        self._samples_before, self._failed = self._samples, 0
        self._epoch_errors = []
        if self.profiler is not None:
            self.profiler.watch(pool)

    def delivered(self, request: BatchRequest, report: BatchReport, waited: int) -> None:
        """Record a delivered batch; the consumer waited `waited` nanoseconds for it."""
        self._batches += 1
        self._samples += report.samples
        self._bytes += report.nbytes
        if report.profile and self.profiler is not None:
            self.profiler.add(report.profile)
        self.times.add(request.number, request.indices, report.times, waited)
        if self.on_delivered is not None:
            self.on_delivered(request, report)

    def emptied(self) -> None:
        """Record a batch that lost all its samples."""
        self._totals["empty_batches"] += 1

    def failed(self, error: SampleError) -> TooManyErrorsError | None:
        """Record a failed sample; return what to raise if there were too many."""
        if error.decision == "raise":
            # Keep a copy: the exception itself is about to be raised, and its frames refer to user
            # objects.
            error = dataclasses.replace(error, exception=without_frames(error.exception))
        self.errors.append(error)
        weight = len(error.indices) or 1
        self._totals["failed"] += weight
        self._totals[{"skip": "skipped", "replace": "replaced", "retry": "retried"}.get(error.decision, "raised")] += (
            weight
        )
        self.write(dataclasses.replace(incident_of(error, self.dataset), epoch=self.epoch, seed=self.seed))
        if error.decision not in ("skip", "replace"):
            return None
        self._failed += weight
        self._epoch_errors.append(error)
        del self._epoch_errors[:-MOST_KEPT]
        other = "the next one" if error.replacement is None else f"sample {short(error.replacement)}"
        done = "left out" if error.decision == "skip" else f"replaced by {other}"
        first, line, rest = str(error).partition("\n")
        self.say(f"{type(error.exception).__name__} {error.stage}", "%s; it was %s%s", first, done, line + rest)
        return self._over_budget()

    def incident(self, incident: Incident, *, write: bool = True) -> None:
        """Record any other incident."""
        self._kinds[incident.kind] += 1
        self.incidents.append(incident)
        if write:
            self.write(incident)

    def restarted(self) -> None:
        """Record that a worker was replaced."""
        self._totals["restarts"] += 1

    def ended(self) -> TooManyErrorsError | None:
        """End an epoch; return what to raise if all its samples failed."""
        if self.profiler is not None:
            self.profiler.stop()
        if self._samples == self._samples_before and self._failed:
            return self._too_many(
                "the only sample of the epoch failed"
                if self._failed == 1
                else f"all {self._failed} samples of the epoch failed"
            )
        return None

    def say(self, kind: str, text: str, *values: Any) -> None:
        """Log a warning, but of each kind only the 1st, 2nd, 4th, 8th and so on."""
        self._said[kind] += 1
        said = self._said[kind]
        if said & (said - 1) == 0:
            more = f" ({said} of this kind so far)" if said > 1 else ""
            log.warning("%s%s", text % values, more)

    @property
    def pool(self) -> Any:
        """The pool of the present epoch, or None."""
        return None if self._pool is None else self._pool()

    # -- results -----------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return the statistics so far."""
        pool = self.pool
        spans, held = (0, 0) if pool is None else pool.memory()
        totals = self._totals
        auto = self.auto() if self.auto is not None else None
        waited, starting = self.times.waited(), sum(self.starts)
        nodes = {} if self.reports is None else dict(self.reports.nodes)
        return Statistics(
            epochs=totals["epochs"],
            batches=self._batches,
            samples=self._samples,
            failed=totals["failed"],
            skipped=totals["skipped"],
            replaced=totals["replaced"],
            retried=totals["retried"],
            empty_batches=totals["empty_batches"],
            restarts=totals["restarts"],
            starting=starting,
            workers=self._workers if auto is None else auto.workers,
            waited=waited,
            stages=self.times.stages(),
            slowest=self.times.slowest(),
            stalls=self.times.stalls,
            incidents=dict(self._kinds),
            bytes=self._bytes,
            arena_bytes=spans,
            arena_held=held,
            auto=auto,
            profile=None if self.profiler is None else self.profiler.report(),
            copies=self.copies.statistics(),
            nodes=nodes,
            does_not_pay=does_not_pay(nodes, self.reports.arriving_seconds, waited.total - starting, own_processors())
            if self.reports is not None and nodes
            else "",
        )

    # -- internals ---------------------------------------------------------------------------------

    def _over_budget(self) -> TooManyErrorsError | None:
        most, failed = self._max_errors, self._failed
        if most is None:
            return None
        if isinstance(most, int):
            if failed <= most:
                return None
            return self._too_many(
                f"{count(failed, 'sample')} failed in this epoch, and max_errors={most} allows {most}"
            )
        total = self._expected
        if total is None:
            total = max(ENOUGH_SEEN, self._samples - self._samples_before + failed)
        if failed <= most * total:
            return None
        return self._too_many(
            f"{failed} of {total} samples failed in this epoch, and max_errors={most} allows {most:.2%}"
        )

    def _too_many(self, text: str) -> TooManyErrorsError:
        from unjam.loader.failures.error_log import summary  # noqa: PLC0415 - only when something fails

        known = tuple(self._epoch_errors)
        problem = TooManyErrorsError(
            "\n".join([text, *summary([incident_of(error, self.dataset) for error in known])]), known
        )
        if known:
            problem.__cause__ = known[-1].exception
            problem.incident = incident_of(known[-1], self.dataset)
        return problem

    def write(self, incident: Incident) -> None:
        """Append an incident to the error log.

        It is one line in one write: several processes may share the file, and a reader may follow
        it.
        """
        if self._error_log is None:
            return
        try:
            fd = open_own(self._error_log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(fd).st_size
                # a process that was killed while writing left half a line
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                os.write(fd, (b"\n" if torn else b"") + incident.to_json().encode("utf-8", "backslashreplace") + b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            if self._log_works:
                log.warning("the error log %s cannot be written: %s; training continues", self._error_log, error)
            self._log_works = False


def incident_of(error: SampleError, dataset: str) -> Incident:
    """Return a failed sample as an incident."""
    from unjam.loader.failures.incident import Incident, plain  # noqa: PLC0415 - only when something fails

    exception = error.exception
    # what is known of a worker that died or stood still
    known = exception.incident if isinstance(exception, UnjamError) else None
    worker = known if isinstance(known, Incident) else Incident("sample", "")
    return Incident(
        kind=worker.kind,
        what=str(error),
        decision=error.decision,
        sample=plain(error.index),
        key=error.key,
        batch=error.batch,
        samples=tuple(map(plain, error.indices)),
        yielded=error.yielded,
        worker=error.worker,
        pid=error.pid,
        stage=error.stage,
        seconds=round(error.seconds, 6),
        tries=error.tries,
        replacement=plain(error.replacement),
        exception=type_name(type(exception)),
        message=words_of(exception),
        traceback=_traceback(exception),
        exit_code=worker.exit_code,
        signal=worker.signal,
        memory=worker.memory,
        stack=worker.stack,
        waits_for=worker.waits_for,
        note=error.note,
        dataset=dataset,
    )


def _traceback(exception: BaseException) -> str:
    cause = exception.__cause__
    if isinstance(cause, RemoteTraceback):
        return cause.text
    if exception.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
