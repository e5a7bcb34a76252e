"""Records of the loaders in the program's process: requests, waits, and how batches were made."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.run import LoaderRun, RunFailure, TimedBatch, TimedCopy, Wait, batch_name, size_of
from unjam.doctor.facts.sample_files import FileList, file_list
from unjam.doctor.facts.timeline import MOST_SLOW
from unjam.doctor.facts.trial import Place, users_frames
from unjam.doctor.run import batch_file
from unjam.doctor.run.settings import Settings
from unjam.doctor.run.thread_waits import ThreadWaits
from unjam.errors import SampleTimeoutError
from unjam.loader.device.copy_count import CopyCount
from unjam.loader.driver.profiling import together
from unjam.system.by_identity import ByIdentity
from unjam.system.limits import resident_bytes

MOST_WAITS = 200_000
MOST_MADE = 50_000
# nanoseconds between two readings of the workers' memory, and how many we keep
MEMORY_EVERY, MOST_READINGS = 500_000_000, 50_000
_TAIL = 3  # time stamps after those of the samples: collate starts, packing starts, done


class Pass:
    """One pass of the program over a loader: measures how long it waits for each batch."""

    __slots__ = ("_begun", "_first", "_last", "_opening", "_record")

    def __init__(self, record: Record, begun: int, done: int) -> None:
        self._record = record
        self._begun, self._opening = begun, done - begun
        self._first, self._last = True, 0

    def waited(self, asked: int, got: int, batch: Any) -> None:
        """The program got its batch."""
        record = self._record
        record.batches += 1
        if self._first:
            record.add_wait(self._begun, self._begun + self._opening)
        record.add_wait(asked, got)
        record.samples += size_of(batch) if record.batch_size is not None or record.batched else 1
        if self._last:
            record.nanoseconds["trained"] += asked - self._last
        if self._first:
            record.epochs += 1
            record.starts.append(self._opening + got - asked)
            # the first wait includes creating the iterator, if nothing else happened in between
            record.waits.append(
                Wait(min(asked, self._begun) if asked - self._begun - self._opening < 10**7 else asked, got, first=True)
            )
        else:
            record.nanoseconds["waited"] += got - asked
            record.waits.append(Wait(asked, got))
        self._first, self._last = False, got
        if got - record.memory_read_at > MEMORY_EVERY:
            record.read_memory(got)
        if record.stop_after and record.batches >= record.stop_after:
            record.stop()

    def ended(self, asked: int, got: int) -> None:
        """The epoch is over."""
        if self._last:
            self._record.nanoseconds["trained"] += asked - self._last
        self._record.nanoseconds["waited"] += got - asked
        self._record.add_wait(asked, got)
        self._last = 0

    def raised(self, asked: int, got: int, error: BaseException) -> None:
        """The program gets an exception instead of a batch."""
        self.ended(asked, got)
        if isinstance(error, Exception):
            self._record.failures[words_of(error)] += 1


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call in user code. instruction: tells apart two calls at one line."""

    place: Place
    instruction: int


class Record:
    """One loader of this process, or several that were created at the same line, by the same calls.

    calls: the calls in user code that led to its creation, the innermost first.
    """

    def __init__(self, loader: Any, calls: tuple[Call, ...], records: RunRecords) -> None:
        self._records = records
        self._nanoseconds_by_thread: Counter[int] = Counter()  # nanoseconds that each thread waited
        self.calls = calls
        self.kind, self.dataset = type(loader).__name__, type(loader.dataset).__qualname__
        self.workers, self.batch_size = loader.num_workers, loader.batch_size
        self.persistent = bool(loader.persistent_workers)
        self.batched = loader.batch_sampler is not None
        self.note = "created by the loader's own class"
        self._file_list: FileList | None = None
        self.recorders: list[Any] = []
        self.waits: deque[Wait] = deque(maxlen=MOST_WAITS)
        self._raw: list[tuple[int, int, Any, bytes]] = []
        self._made: deque[TimedBatch] = deque(maxlen=MOST_MADE)
        self._copied: deque[tuple[int, ...]] = deque(maxlen=MOST_MADE)
        self._seeds: list[int] = []
        self._worker_numbers: dict[int, int] = {}
        self.iterators = self.epochs = self.batches = self.samples = self.loaders = 0
        self.nanoseconds: Counter[str] = Counter()
        self.starts = array("q")
        self._since = 0
        self.failures: Counter[str] = Counter()
        self.stop_after = records.settings.stop_after
        self.memory_read_at = 0
        self._memory: deque[tuple[int, int, int]] = deque(maxlen=MOST_READINGS)
        self._iterator: Any = None
        # the auto sizer of the last loader created at this line: the next one continues with it
        self.sizer: Any = None

    def add_wait(self, asked: int, got: int) -> None:
        """Add the time that the calling thread waited for a batch."""
        self._nanoseconds_by_thread[threading.get_ident()] += got - asked
        self._records.thread_waits.add(asked, got)

    def read_memory(self, now: int) -> None:
        """Record the private memory of each worker: resident pages that are not shared."""
        self.memory_read_at = now
        iterator = self._iterator() if self._iterator is not None else None
        for number, worker in enumerate(getattr(iterator, "_workers", ()) if self.workers else ()):
            with contextlib.suppress(AttributeError):
                resident, shared = resident_bytes(worker.pid)
                if resident:
                    self._memory.append((now, number, resident - shared))

    def stop(self) -> None:
        """Write the reports and end the program: it has run for enough batches."""
        self._records.close(self._records.settings)
        os._exit(0)

    @property
    def key(self) -> tuple[Any, ...]:
        """Loaders with equal keys share a record."""
        return self.calls, self.kind, self.dataset, self.workers, self.batch_size, self.persistent

    # -- events; these must be cheap ---------------------------------------------------------------

    def begins(self, iterator: Any, loader: Any, token: int, begun: int, done: int) -> None:
        """The program got an iterator: a new one, or a persistent one for another epoch."""
        if getattr(iterator, "unjam_pass", None) is None:
            self.iterators += 1
            self._seeds.append(int(iterator._base_seed) if self.workers else token)  # noqa: SLF001 - torch's name
            files = file_list(loader.dataset)
            # loaders that share this record may have different files
            self._file_list = files if self.iterators == 1 or files == self._file_list else None
        iterator.unjam_pass = Pass(self, begun, done)
        self._iterator = weakref.ref(iterator)
        self._since = self._since or begun
        from unjam.loader.state import recorder_of  # noqa: PLC0415 - torch is imported by now

        recorder = recorder_of(loader)
        if recorder is not None and not self._records.settings.observe:
            recorder.on_delivered, recorder.copies.on_copied, self.note = self.delivered, self.copied, ""
            if recorder not in self.recorders:
                self.recorders.append(recorder)

    def delivered(self, work: Any, facts: Any) -> None:
        """The program got a batch of unjam's loader; `facts` has the times of its making."""
        pid = work.sent_to or 0
        if pid and pid not in self._worker_numbers:
            self._worker_numbers[pid] = self._number(pid)
        self._raw.append((pid, work.number, work.indices, facts.times))
        if len(self._raw) >= 256:
            self._convert_raw()

    def copied(self, *times: int) -> None:
        """A batch is on its device."""
        self._copied.append(times)

    def _number(self, pid: int) -> int:
        """Return the worker number of a pid; each epoch reuses the same numbers."""
        for recorder in self.recorders:
            pool = recorder.pool
            for number in range(self.workers):
                if pool is not None and pool.pid(number) == pid:
                    return number
        return len(self._worker_numbers) % max(int(self.workers), 1)

    # -- the results -------------------------------------------------------------------------------

    def _convert_raw(self) -> None:
        raw, self._raw = self._raw, []
        for pid, number, indices, times in raw:
            stamps = array("q")
            stamps.frombytes(times)
            samples = len(stamps) - _TAIL
            if samples < 1:
                continue
            took = [stamps[at + 1] - stamps[at] for at in range(samples)]
            longest = max(took)
            at = took.index(longest)
            slowest = str(indices[at])[:40] if samples == len(indices) and indices[at] is not None else ""
            worker = self._worker_numbers[pid] if pid else -1
            kept = tuple(stamps[1 : samples + 1]) if self._records.settings.trace else ()
            self._made.append(
                TimedBatch(
                    worker,
                    stamps[0],
                    stamps[samples],
                    stamps[-1],
                    samples,
                    longest,
                    slowest,
                    stamps[samples + 1],
                    kept,
                    batch_name(number, indices),
                )
            )

    def facts(self) -> LoaderRun:
        """Return everything that was recorded."""
        self._convert_raw()
        seconds = {name: value / 1e9 for name, value in self.nanoseconds.items()}
        known: dict[str, Any] = {}
        made = list(self._made)
        if self.recorders:
            known = _from_recorders(self.recorders)
        else:
            known, made = self._from_batch_files()
        if self.failures and not known.get("failures"):
            known["failures"] = tuple(
                RunFailure(words, number, decision="raise") for words, number in self.failures.items()
            )
        return LoaderRun(
            name=f"{self.kind} over {self.dataset}",
            place=self.calls[0].place if self.calls else None,
            called_at=self.calls[1].place if len(self.calls) > 1 else None,
            workers=self.workers,
            batch_size=self.batch_size,
            persistent=self.persistent,
            driver="unjam" if self.recorders else "torch",
            note=self.note,
            epochs=self.epochs,
            batches=self.batches,
            loaders=max(self.loaders, 1),
            starts=tuple(one / 1e9 for one in self.starts),
            waited=seconds.get("waited", 0.0),
            trained=seconds.get("trained", 0.0),
            in_helper_thread=self._nanoseconds_by_thread[self._records.thread_waits.trainer() or 0] * 2
            < sum(self._nanoseconds_by_thread.values()),
            waits=tuple(self.waits),
            made=tuple(made),
            copies=tuple(TimedCopy(*one) for one in self._copied),
            memory=tuple(self._memory),
            cut=self.batches > len(self.waits) or self.batches > len(made),
            files=self._files(made),
            **known,
        )

    def _files(self, made: list[TimedBatch]) -> dict[str, str]:
        """Return the files of the slowest samples, if the dataset holds their paths."""
        if self._file_list is None:
            return {}
        slowest = {one.slowest for one in sorted(made, key=lambda one: -one.longest)[:MOST_SLOW] if one.slowest}
        return {index: path for index in slowest if (path := self._file_list.file_of(index))}

    def _from_batch_files(self) -> tuple[dict[str, Any], list[TimedBatch]]:
        """Read what torch's workers recorded."""
        sampling = collating = 0
        made: list[TimedBatch] = []
        for seed in dict.fromkeys(self._seeds):
            for worker, path in batch_file.of_seed(self._records.settings.folder, seed):
                fetched, collated, its = batch_file.read(path, worker)
                if not self._made_in_use(its):
                    continue  # written for another loader with the same seed
                made += batch_file.with_samples(its, path) if self._records.settings.trace else its
                sampling += fetched
                collating += collated
        known = {"samples": self.samples, "sampling": sampling / 1e9, "collating": collating / 1e9}
        return known, sorted(made, key=lambda one: one.done)[-MOST_MADE:]

    def _made_in_use(self, made: list[TimedBatch]) -> bool:
        """Whether batches were made while the program used this loader."""
        if not made or not self.waits or self.batches > len(self.waits):
            return True
        return self._since <= made[0].begun <= self.waits[-1].got


def _from_recorders(recorders: list[Any]) -> dict[str, Any]:
    done = [recorder.statistics() for recorder in recorders]
    samples: dict[tuple[str, str], list[str]] = {}  # the failed ones, by error and decision
    overdue: list[tuple[str, float]] = []
    incidents: Counter[str] = Counter()
    nodes: dict[str, Counter[str]] = {}
    for recorder, statistics in zip(recorders, done, strict=True):
        incidents.update(statistics.incidents)
        for error in recorder.errors:
            if isinstance(error.exception, SampleTimeoutError):
                overdue.append((str(error.index), error.seconds))
            failed = samples.setdefault((words_of(error.exception), error.decision), [])
            failed += map(str, error.indices or (error.index,))
        for name, one in statistics.nodes.items():
            known = nodes.setdefault(name, Counter())
            known.update(batches=one.batches, bytes=one.bytes)
            known["workers"] = max(known["workers"], one.workers)
    profilers = [recorder.profiler for recorder in recorders if recorder.profiler is not None]
    chosen = next((recorder.auto() for recorder in reversed(recorders) if recorder.auto is not None), None)
    copies = CopyCount.together([recorder.copies for recorder in recorders]).statistics()
    stages = {"sampling": "getitem", "collating": "collate", "packing": "pickle"}
    return {
        **{name: sum(getattr(one, name) for one in done) for name in ("samples", "failed", "restarts")},
        **{name: sum(one.stages[stage].total for one in done) for name, stage in stages.items()},
        "failures": tuple(
            RunFailure(words, len(indices), ", ".join(dict.fromkeys(indices[:5])), decision)
            for (words, decision), indices in sorted(samples.items(), key=lambda one: -len(one[1]))[:10]
        ),
        "incidents": dict(incidents),
        "own_starts": tuple(seconds for recorder in recorders for seconds in recorder.starts),
        "overdue": tuple(overdue),
        "profile": dataclasses.asdict(together(profilers)) if profilers else None,
        "auto": f"{chosen.workers} workers, prefetch {chosen.prefetch}: {chosen.why}" if chosen is not None else "",
        "nodes": tuple((name, one["workers"], one["batches"], one["bytes"]) for name, one in nodes.items()),
        "does_not_pay": next((one.does_not_pay for one in done if one.does_not_pay), ""),
        "device": str(copies).strip().removeprefix("device: ") if copies is not None else "",
    }


def words_of(error: BaseException) -> str:
    """Return an exception as one line."""
    return exception_line(type(error).__name__, str(error))[:300]


class RunRecords:
    """All loaders of this process. A fork starts with an empty list."""

    _here: RunRecords | None = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.began = time.monotonic()
        self._calls: ByIdentity[tuple[Call, ...]] = ByIdentity()
        self._records: ByIdentity[Record] = ByIdentity()
        self.all: list[Record] = []
        self.thread_waits = ThreadWaits()
        # writes the reports; `replace_loader` sets it
        self.close: Callable[[Settings], None] = lambda _: None

    @classmethod
    def here(cls, settings: Settings) -> RunRecords:
        """Return the records of this process."""
        if cls._here is None or cls._here.settings is not settings:
            cls._here = RunRecords(settings)
        return cls._here

    def made(self, loader: Any, frame: FrameType) -> None:
        """The program created a loader."""
        calls = (Call(Place(one.f_code.co_filename, one.f_lineno), one.f_lasti) for one in users_frames(frame))
        self._calls.put(loader, tuple(calls))

    def of(self, loader: Any) -> Record:
        """Return the record of a loader; the first call creates it."""
        if self.pid != os.getpid():  # we are in a fork: a rank, or a worker that uses a loader
            from multiprocessing import util  # noqa: PLC0415 - rare

            calls, close = self._calls, self.close
            self.__init__(self.settings)  # type: ignore[misc] # in place: patches use this object
            self._calls, self.close = calls, close
            # a process that multiprocessing forked skips atexit handlers
            util.Finalize(None, close, args=(self.settings,), exitpriority=-1000)
        record = self._records.get(loader)
        if record is None:
            record = Record(loader, self._calls.get(loader) or (), self)
            # for the user, loaders created at the same line by the same calls are the same loader
            same = next((one for one in self.all if one.calls and one.key == record.key), None)
            record = same or record
            self._records.put(loader, record)
            record.loaders += 1
            if same is None:
                self.all.append(record)
        return record
