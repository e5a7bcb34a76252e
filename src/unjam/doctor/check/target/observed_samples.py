"""Records samples where they are loaded: in a worker, or in the program without workers.

Examining a sample takes time: we hash it and the states of the random generators. We examine all samples
while that costs little, then every second, every fourth and so on. A hash of the index selects them, so
every worker, epoch and rank examines the same ones.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.util
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from unjam.doctor.check.event_log import worker_number
from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.recorded_dataset import RecordedBatches, RecordedDataset, RecordedStream
from unjam.doctor.check.resource_usage import resources
from unjam.doctor.check.target import error_context, file_events, observed_faults
from unjam.doctor.check.target.describe_loader import fingerprint, plain_index
from unjam.doctor.check.target.file_events import SampleFiles
from unjam.doctor.check.target.mapped_files import record_mapped_files
from unjam.doctor.check.target.observer import Observer
from unjam.doctor.check.target.outside_state import OutsideState
from unjam.doctor.check.target.unreleased_resources import HeldResources
from unjam.doctor.facts.digest import digest, signature, weigh
from unjam.doctor.facts.faults import InheritedOutput, SampleOutput, UnreleasedResource
from unjam.doctor.facts.program_facts import ResourceUsage, WatchedSample
from unjam.system.proc_files import read_text

SHARE = 0.03  # of the loading time that examining samples may take
MOST_EXAMINED = 3000
ALWAYS_EXAMINED = 24  # samples of each epoch
WRITE_EVERY = 0.05
MOST_RECORDED = 200
MOST_SIGNED = 4000  # samples of a stream, in each worker and epoch
MEASURE_EVERY = 0.4


@dataclass(slots=True)
class _Before:
    """The state before a sample was loaded."""

    is_examined: bool = False
    states: dict[str, str] = field(default_factory=dict)  # of the generators
    read: int = 0  # bytes
    resources: dict[str, int] = field(default_factory=dict)
    traffic: dict[int, int] = field(default_factory=dict)  # of each connection, in bytes
    files: SampleFiles | None = None


class SampleObserver:
    """The samples of this process."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.pid = os.getpid()
        self.fetchers = 0
        self._level = self._examined = 0
        self._examining = 0.0  # seconds
        self._began = time.perf_counter()
        self._sum: dict[str, Any] = {}
        self._first_of_epoch = self._first = True
        self._always, self._step = ALWAYS_EXAMINED, 1  # samples left in this epoch to examine in any case
        self._randomness: Randomness | None = None
        self._outside: OutsideState | None = None
        self._resources: HeldResources | None = None
        self._unreleased = self._loads = self._batches = self._signed = 0
        self._last_write = self._last_measurement = self._last_mapped = 0.0
        self._written: set[tuple[str, bool]] = set()
        self._connections: dict[int, str] = {}
        self._writable: dict[str, int] = {}  # open for writing before this worker began: path -> size

    def start_epoch(self, fetcher: Any) -> None:
        """Start an epoch, in a worker or in the program without workers."""
        began = time.perf_counter()
        self._write_counts()  # of the previous epoch
        self.fetchers += 1
        self._first_of_epoch = True
        self._always, self._signed = ALWAYS_EXAMINED, 0
        number = worker_number()
        first_in_worker = number >= 0 and self.fetchers == 1
        with contextlib.suppress(Exception):
            self._step = max(1, len(fetcher.dataset) // ALWAYS_EXAMINED)
        with contextlib.suppress(Exception):
            inventory = Inventory({"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn})
            self._randomness = Randomness(inventory.generators())
            if first_in_worker:
                files = error_context.writable_files(inventory)
                self._connections = error_context.inherited_connections(inventory)
                self._writable = files if files and error_context.writes(fetcher.dataset) else {}
        with contextlib.suppress(Exception):
            if first_in_worker:
                error_context.note_open_descriptors()
            self._resources = HeldResources(fetcher.dataset, fetcher.collate_fn)
        if self._outside is None or number < 0:
            self._outside = OutsideState(fetcher.dataset, fetcher.collate_fn)
        fields: dict[str, Any] = {"e": self.fetchers - 1, "hashes": self._state(fetcher.dataset)}
        if number >= 0:
            fields["base"] = sys.modules["torch.utils.data._utils.worker"].get_worker_info().seed - number
        if first_in_worker:
            # runs when the worker ends
            multiprocessing.util.Finalize(
                self, SampleObserver.end_worker, args=(self, fetcher.dataset), exitpriority=10
            )
        self.observer.write("fetcher", worker=number, **fields)
        self._examining += time.perf_counter() - began

    def end_worker(self, dataset: Any) -> None:
        """Record the files that this worker wrote, and the final state of the dataset."""
        self._write_counts()
        for path, size in self._writable.items():
            with contextlib.suppress(OSError):  # it is gone
                if os.stat(path).st_size > size:
                    self.observer.record(InheritedOutput(path, worker_number(), file_events.opened_at(path)))
        self.observer.write("fetched", worker=worker_number(), e=self.fetchers - 1, hashes=self._state(dataset))

    def _state(self, dataset: Any) -> dict[str, str]:
        return {**fingerprint(dataset), **(self._outside.read() if self._outside is not None else {})}

    def sample(self, index: Any, load: Callable[[], Any]) -> Any:
        """Load one sample, and perhaps examine it."""
        before, raised = _Before(), ""
        with contextlib.suppress(Exception):
            self._read_state(before, index)
        began = time.perf_counter()
        try:
            sample = load()
        except StopIteration:
            raise
        except BaseException as error:
            raised = type(error).__qualname__
            if isinstance(error, (Exception, SystemExit)):
                files = tuple(before.files.read) if before.files is not None else ()
                self.observer.record_failure(
                    "sample", error, index=str(index)[:200], worker=worker_number(), files=files
                )
            raise
        finally:
            took = time.perf_counter() - began
            with contextlib.suppress(Exception):
                self._record_effects(before, index, raised)
        with contextlib.suppress(Exception):
            self._count(before, index, sample, took)
        return sample

    def _read_state(self, before: _Before, index: Any) -> None:
        """Read the state before the sample is loaded."""
        before.is_examined = self._is_selected(index)
        before.states = self._generator_states() if before.is_examined else {}
        before.read = _bytes_read() if before.is_examined else 0
        before.resources = self._resources.read() if self._resources is not None else {}
        now = time.monotonic()
        if now - self._last_mapped > MEASURE_EVERY:
            self._last_mapped = now
            record_mapped_files(self.observer)
        observed_faults.latest_seeds.clear()
        before.traffic = {fd: error_context.traffic(fd) for fd in self._connections}
        before.files = file_events.begin_sample(collects=before.is_examined)

    def _record_effects(self, before: _Before, index: Any, raised: str) -> None:
        """Record what loading the sample wrote, which connections it used, and what it did not release."""
        file_events.end_sample()
        self._record_written(before)
        for fd in [fd for fd, sent in before.traffic.items() if error_context.traffic(fd) > sent]:
            self.observer.write("used_connection", target=self._connections.pop(fd))
        if self._resources is not None and self._loads < 2:
            self._loads += 1
            self._resources.find()
        if self._resources is not None and self._unreleased < MOST_RECORDED:
            for path, kind, place in self._resources.not_released(before.resources):
                self._unreleased += 1
                at, name = time.monotonic(), str(index)[:200]
                self.observer.record(
                    UnreleasedResource(path, kind, name, worker_number(), os.getpid(), place, raised, at)
                )

    def _count(self, before: _Before, index: Any, sample: Any, took: float) -> None:
        """Count a sample that was loaded, and perhaps examine it."""
        if self._first:
            self._first = False
            record_mapped_files(self.observer)
        now, known = time.perf_counter(), self._sum
        known["n"] = known.get("n", 0) + 1
        known["s"] = known.get("s", 0.0) + took
        if str(index).startswith("#") and self._signed < MOST_SIGNED:
            self._signed += 1
            with contextlib.suppress(Exception):
                known.setdefault("q", []).append(signature(sample))
        if before.is_examined:
            with contextlib.suppress(Exception):
                self._examine(before, index, sample, took)
            self._examining += time.perf_counter() - now
        elif now - self._last_write > WRITE_EVERY:
            self._write_counts()

    def _is_selected(self, index: Any) -> bool:
        """Whether to examine a sample."""
        if self._examined > MOST_EXAMINED:
            return False
        number = zlib.crc32(str(index).encode())
        if self._first_of_epoch:
            self._first_of_epoch = False
            return True
        if self._always and number % self._step == 0:
            self._always -= 1
            return True
        if self._examined > 24 and self._examining > SHARE * (time.perf_counter() - self._began):
            self._level += 1
            self._began, self._examining = time.perf_counter(), 0.0
        return number & ((1 << self._level) - 1) == 0

    def _generator_states(self) -> dict[str, str]:
        try:
            return self._randomness.states() if self._randomness is not None else {}
        except Exception:  # noqa: BLE001 - a generator that cannot be read
            return {}

    def _examine(self, before: _Before, index: Any, sample: Any, took: float) -> None:
        """Record a sample's hash, the generators that it used, and the files that it read."""
        self._examined += 1
        read = _bytes_read() - before.read
        whole, leaves = digest(sample)
        after = self._generator_states()
        seeds = observed_faults.latest_seeds
        # if nothing was drawn since it was seeded, the state is still the same
        idle = {name: place for name, (state, place) in seeds.items() if after.get(name) == state}
        drew = {n: state for n, state in before.states.items() if after.get(n) != state and n not in idle}
        shown = str(index) if str(index).startswith("#") else plain_index(index)
        size = weigh(sample)[0] or len(repr(sample)[:10_000])
        files = tuple(before.files.opened) if before.files is not None else ()
        fact = WatchedSample(
            shown, worker_number(), whole, leaves, drew, took, read, size, files, tuple(sorted(seeds)), idle
        )
        self.observer.record(fact, e=self.fetchers - 1, worker=fact.worker)

    def _record_written(self, before: _Before) -> None:
        """Record the files that this sample wrote, and whether it read them again."""
        written = before.files.written if before.files is not None else {}
        for path, (place, is_read) in written.items():
            key = path, is_read
            if worker_number() >= 0 and key not in self._written and len(self._written) < MOST_RECORDED:
                self._written.add(key)
                fact = SampleOutput(path, os.getpid(), place, file_events.locks, is_read)
                self.observer.record(fact)

    def _write_counts(self) -> None:
        if self._sum:
            self._last_write = time.perf_counter()
            self.observer.write("loaded", worker=worker_number(), e=self.fetchers - 1, **self._sum)
            if self._last_write - self._last_measurement > MEASURE_EVERY and worker_number() >= 0:
                self._last_measurement = self._last_write
                used = resources()
                usage = ResourceUsage(
                    worker_number(), self._batches, used.get("memory", 0), used.get("descriptors", 0), {}, file_events.busiest_line()
                )  # fmt: skip
                self.observer.record(usage, e=self.fetchers - 1)
            self._sum = {}

    def collate(self, function: Callable[[Any], Any], samples: Any) -> Any:
        """Collate a batch."""
        try:
            batch = function(samples)
        except Exception as error:
            self.observer.record_failure("collate", error, worker=worker_number())
            raise
        self._batches += 1
        if time.perf_counter() - self._last_write > WRITE_EVERY:
            self._write_counts()
        return batch


def _bytes_read() -> int:
    """The number of bytes that this process has read from files, pipes and sockets."""
    words = read_text("/proc/self/io").split()
    return int(words[1]) if words else 0


def patch_fetchers(module: ModuleType, observer: Observer) -> None:
    """Patch torch's two fetchers."""
    in_worker: SampleObserver | None = None

    def observer_of(fetcher: Any) -> SampleObserver:
        """The observer of a fetcher: a worker has one for all its epochs, other processes one for each fetcher."""
        nonlocal in_worker
        known: SampleObserver | None = getattr(fetcher, "unjam_samples", None)
        if known is None or known.pid != os.getpid():
            is_worker = worker_number() >= 0
            reused = in_worker if is_worker and in_worker is not None and in_worker.pid == os.getpid() else None
            known = fetcher.unjam_samples = reused or SampleObserver(observer)
            in_worker = known if is_worker else in_worker
        return known

    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):  # noqa: SLF001 - torch's names
        _patch_init(kind, observer, observer_of)


def _patch_init(kind: Any, observer: Observer, observer_of: Callable[[Any], SampleObserver]) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(this, *args, **kwargs)
        except Exception as error:
            observer.record_failure("made", error, worker=worker_number())
            raise
        samples = observer_of(this)
        with contextlib.suppress(Exception):
            if not observer.active:
                return
            samples.start_epoch(this)
            this.collate_fn = functools.partial(samples.collate, this.collate_fn)
            if hasattr(this, "dataset_iter"):
                this.dataset_iter = RecordedStream(this.dataset_iter, samples.sample)
            elif not getattr(this.dataset, "__getitems__", None) or type(this.dataset).__module__.startswith("torch."):
                this.dataset = RecordedDataset(this.dataset, samples.sample)
            else:
                this.dataset = RecordedBatches(this.dataset, samples.sample)

    kind.__init__ = made
