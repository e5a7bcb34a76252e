"""Measures loader settings one after another, in a fork of the program. Nothing but loading runs."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import multiprocessing
import os
import random
import select
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from torch.utils.data import IterableDataset

from unjam.deadlines import DOCTOR_ALIVE
from unjam.doctor.check.event_log import exception_fields
from unjam.doctor.check.trial import sandbox
from unjam.doctor.check.trial.changes import reopen_privately
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.run import batch_name, size_of
from unjam.doctor.facts.sample_files import file_list
from unjam.doctor.facts.timeline import MOST_SLOW
from unjam.doctor.facts.tune_measurements import Measurement, TuneSetting
from unjam.loader.ship.worker_info_use import asks_for_its_worker
from unjam.loader.transport.status_page import Stage
from unjam.system import limits, waiting

# the measured time is divided into this many parts, to see how much their rates differ
PARTS = 5
# average seconds between two samples of the workers' state; the interval is random, because a fixed one could match the
# rhythm of the batches
SAMPLE_EVERY = 0.03
MOST_BARS = 2000


def serve(loader: Any, folder: str) -> None:
    """Measure the settings that arrive through the folder, until this process is killed."""
    orders = os.open(f"{folder}/orders", os.O_RDWR | os.O_NONBLOCK)
    poller = select.poll()
    poller.register(orders, select.POLLIN)
    text = b""
    while True:
        while b"\n" not in text:
            if poller.poll(DOCTOR_ALIVE.milliseconds):
                text += os.read(orders, 65536)
        line, _, text = text.partition(b"\n")
        order = json.loads(line)
        until = time.monotonic() + order["most"]
        found = measure(loader, TuneSetting(**order["setting"]), order["seconds"], until, profile=order["profile"])
        with open(f"{folder}/answers", "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(found), default=str) + "\n")


def measure(loader: Any, setting: TuneSetting, seconds: float, until: float, *, profile: bool) -> Measurement:
    """Measure one setting for `seconds` after its first batch, but not longer than `until`."""
    if setting.workers > 1 and isinstance(loader.dataset, IterableDataset) and not asks_for_its_worker(loader.dataset):
        note = "the iterable does not ask which worker it runs in: every worker would return every sample"
        return Measurement(setting, "refused", note)
    for fd, offset in sandbox.captured_offsets.items():
        reopen_privately(fd, offset)
    made = copy.copy(loader)
    _set_options(made, setting)
    if not setting.workers:
        from unjam.loader.worker.thread_limits import cap_threads  # noqa: PLC0415 - imports torch

        cap_threads(1, loaded_elsewhere=True, forked=True)  # thread pools don't survive a fork
    if setting.driver == "unjam" and setting.workers and not _warm:
        # start the fork server before we measure: a program starts it once, not for each setting
        _warm.append(True)
        first = copy.copy(made)
        vars(first)["num_workers"] = 1
        with contextlib.suppress(Exception):
            _SettingMeasurement(first, setting.changed(workers=1), profile=False).warm_up()
    measurement = _SettingMeasurement(made, setting, profile=profile)
    try:
        measurement.run(seconds, until)
    except Exception as error:  # noqa: BLE001 - an error is a result of this setting
        known = exception_fields(error)
        return Measurement(setting, "raised", note=exception_line(known["type_name"], known["message"])[:300])
    finally:
        measurement.close()
    return measurement.summary()


_warm: list[bool] = []


def _set_options(loader: Any, setting: TuneSetting) -> None:
    values = vars(loader)
    values.update(num_workers=setting.workers, _iterator=None, pin_memory=False)
    context = multiprocessing.get_context(setting.start) if setting.workers and setting.start else None
    values["_DataLoader__multiprocessing_context"] = context
    values["prefetch_factor"] = setting.prefetch if setting.workers else None
    if not setting.workers:
        values.update(persistent_workers=False, timeout=0)


class _SettingMeasurement:
    def __init__(self, loader: Any, setting: TuneSetting, *, profile: bool) -> None:
        self._loader, self._setting = loader, setting
        self._recorder: Any = None
        if setting.driver == "unjam":
            from unjam.loader.dataloader import DataLoader, attach_unjam  # noqa: PLC0415 - imports torch
            from unjam.loader.options import LoaderOptions  # noqa: PLC0415 - as above

            # an unjam loader keeps its options
            given = LoaderOptions.of(loader) if isinstance(loader, DataLoader) else LoaderOptions()
            threads = setting.threads or None
            given = dataclasses.replace(given, worker_threads=threads, profile=profile, warn_after=None, error_log=None)
            self._recorder = attach_unjam(loader, given).recorder
            self._recorder.on_delivered = self._record_bar
        self._iterator: Any = None
        self._rates: list[float] = []
        self._waits: Counter[str] = Counter()
        self._bars: list[Any] = []
        self.first = 0.0
        self.turn: float | None = None
        self.batches = self.samples = 0
        self._since = self._until = 0.0
        # without batching each item is one sample; with a batch sampler we read the size of each batch
        self._size = loader.batch_size or (None if loader.batch_sampler is not None else 1)
        self._cpu, self._cpu_at = (0.0, 0.0), 0.0
        self._latest = ((0.0, 0.0), 0.0)
        self._used = [0.0, 0.0, 0.0]  # CPU seconds of workers, of this process; in how many seconds
        self._counted = [0, 0.0]
        self._memory = 0

    def _record_bar(self, work: Any, facts: Any) -> None:
        if len(self._bars) >= MOST_BARS:
            return
        stamps = array("q")
        stamps.frombytes(facts.times)
        if len(stamps) > 3:
            took = [stamps[at + 1] - stamps[at] for at in range(len(stamps) - 3)]
            longest = max(took)
            slow = str(work.indices[took.index(longest)])[:40] if len(took) == len(work.indices) else ""
            name = batch_name(work.number, work.indices)
            self._bars.append((work.sent_to or 0, stamps[0], stamps[-3], stamps[-1], len(took), slow, longest, name))

    def warm_up(self) -> None:
        """Load one batch without measuring."""
        try:
            next(iter(self._iterate()))
        finally:
            self.close()

    def run(self, seconds: float, until: float) -> None:
        """Iterate epochs until the time is up. Slow batches may exceed it, up to a limit."""
        ended, self._until = None, until
        while self._elapsed() < seconds:
            begun = time.monotonic()
            self._iterator = self._iterate()
            with contextlib.ExitStack() as stack:
                done = self._epoch(begun, ended, seconds, stack)
            ended = time.monotonic()
            in_time = self._elapsed() < seconds * 3 and ended + 2 * self.first < until
            if not done and self.turn is None and in_time and self._setting.workers:
                self._measure_turn(ended)
            if not done or not self.batches:
                break

    def _elapsed(self) -> float:
        """Seconds since the first batch of the first epoch."""
        return time.monotonic() - self._since if self._since else 0.0

    def _epoch(self, begun: float, ended: float | None, seconds: float, stack: contextlib.ExitStack) -> bool:
        """Iterate one epoch; returns False if the time was over before its end."""
        times, sizes = array("d"), array("q")
        rounds = 2 * self._setting.workers + 1  # the workers return their batches in turn
        for batch in self._iterator:
            now = time.monotonic()
            if not times:
                if ended is not None and self.turn is None:
                    self.turn = now - ended
                self.first = self.first or now - begun
                if not self.batches:
                    self._since = now
                self._cpu, self._cpu_at = self._cpu_seconds(), now
                # only now: we must have no thread while workers are forked
                stack.enter_context(self._observing_workers())
            times.append(now)
            sizes.append(self._size or size_of(batch))
            self.batches += 1
            self.samples += sizes[-1]
            spent = self._elapsed()
            if (spent >= seconds and len(times) >= max(3, rounds)) or spent > seconds * 4 or now > self._until:
                self._close_epoch(times, sizes, begun, whole=False)
                return False
        self._close_epoch(times, sizes, begun, whole=True)
        return True

    def _close_epoch(self, times: array[float], sizes: array[int], begun: float, *, whole: bool) -> None:
        self._memory = max(self._memory, sum(map(limits.pss_bytes, [os.getpid(), *self._pids()])))
        if not times:
            return
        (workers, main), at = self._latest
        if at > self._cpu_at:
            self._used[0] += workers - self._cpu[0]
            self._used[1] += main - self._cpu[1]
            self._used[2] += at - self._cpu_at
        each = max(1, self._setting.workers)
        ahead = self._setting.workers * self._setting.prefetch
        # skip the batches that were prefetched before the first one was requested
        kept, weights = times[ahead:], sizes[ahead:]
        rounds = (len(kept) - 1) // each
        if rounds < 2 or (whole and len(times) < 3 * ahead):
            # too few batches for a steady rate: take the whole epoch, including its start
            took = (time.monotonic() if whole else times[-1]) - begun
            self._add_rate(sum(sizes), took)
            return
        step = max(1, rounds // PARTS) * each
        for at_batch in range(0, rounds * each - step + 1, step):
            took = kept[at_batch + step] - kept[at_batch]
            self._add_rate(sum(weights[at_batch + 1 : at_batch + step + 1]), took)

    def _add_rate(self, samples: int, took: float) -> None:
        if took > 0:
            self._counted[0] += samples
            self._counted[1] += took
            self._rates.append(samples / took)

    def _measure_turn(self, ended: float) -> None:
        """Measure `turn` when an epoch is too long to finish: abandon it and start another."""
        if self._recorder is not None:
            self._recorder.on_delivered = None  # keep these batches out of the timeline
        if not self._loader.persistent_workers:
            self._shut_down_iterator()
        iterator = self._iterate()
        if next(iter(iterator), None) is not None:
            self.turn = time.monotonic() - ended
        self._iterator = iterator

    def _iterate(self) -> Any:
        if self._recorder is None:
            return sandbox.iterator_of(self._loader)
        from unjam.loader.dataloader import open_iterator  # noqa: PLC0415 - as above

        kept = self._loader._iterator  # noqa: SLF001 - torch's name
        if kept is not None:
            kept._reset(self._loader)  # noqa: SLF001 - as above
            return kept
        made = open_iterator(self._loader)
        if self._loader.persistent_workers and self._setting.workers:
            vars(self._loader)["_iterator"] = made
        return made

    def _pids(self) -> list[int]:
        workers = getattr(self._iterator, "_workers", None) or []
        return [worker.pid for worker in workers if worker.pid]

    def _cpu_seconds(self) -> tuple[float, float]:
        own = time.process_time()
        return sum(map(limits.processor_seconds, self._pids())), own

    @contextlib.contextmanager
    def _observing_workers(self) -> Iterator[None]:
        """Sample the state of the workers at random times while the context is open."""
        over = threading.Event()
        rng = random.Random(0)  # noqa: S311 - no secret
        pids = self._pids()

        def sample() -> None:
            while not over.wait(SAMPLE_EVERY * rng.uniform(0.3, 1.7)):
                used = self._cpu_seconds()
                # the workers' sum drops when they end: keep the reading from before that
                if used[0] >= self._latest[0][0] or self._latest[1] < self._cpu_at:
                    self._latest = (used, time.monotonic())
                for number, pid in enumerate(pids):
                    if self._is_loading(number):
                        self._waits[waiting.current_wait(pid).kind] += 1

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(1)

    def _is_loading(self, number: int) -> bool:
        """Whether an unjam worker is loading now; otherwise it waits for work."""
        driver = getattr(self._iterator, "_driver", None)
        beat = driver.pool.heartbeat(number) if driver is not None and hasattr(driver, "pool") else None
        return beat is not None and beat.stage in (Stage.GETITEM, Stage.COLLATE)

    def _shut_down_iterator(self) -> None:
        iterator, self._iterator = self._iterator, None
        sandbox.shut_down_workers(iterator)

    def close(self) -> None:
        """Shut down the workers."""
        self._shut_down_iterator()
        kept = getattr(self._loader, "_iterator", None)
        vars(self._loader)["_iterator"] = None
        sandbox.shut_down_workers(kept)

    def _files(self, slowest: Iterable[tuple[str, float]]) -> dict[str, str]:
        """Return the files of the slowest samples, if the dataset holds their paths."""
        files = file_list(self._loader.dataset)
        names = [
            *(index for index, _ in slowest),
            *(bar[5] for bar in sorted(self._bars, key=lambda bar: -bar[6])[:MOST_SLOW]),
        ]
        return {name: path for name in names if files is not None and (path := files.file_of(name))}

    def summary(self) -> Measurement:
        """The result."""
        stages: dict[str, float] = {}
        slowest: tuple[tuple[str, float], ...] = ()
        stalled, failed, profile, busy = 0.0, 0, None, 0.0
        if self._recorder is not None:
            done = self._recorder.statistics()
            made = max(1, done.samples)
            stages = {name: times.total / made for name, times in done.stages.items()}
            slowest = tuple((one.index, one.seconds) for one in done.slowest[:10])
            stalled = done.stalls.seconds / max(1e-6, self._elapsed())
            failed = done.failed
            spent = sum(times.total for times in done.stages.values()) * (self.samples / made)
            busy = min(1.0, spent / max(1e-6, self._elapsed() * max(1, self._setting.workers)))
            profile = asdict(done.profile) if done.profile is not None else None
        per_second = 1 / max(1e-6, self._used[2])
        return Measurement(
            self._setting, "fine" if self.batches else "refused", "" if self.batches else "the epoch has no batch",
            self._elapsed(), self.batches, self.samples, (int(self._counted[0]), self._counted[1]), tuple(self._rates),
            self.first, self.turn, self._used[0] * per_second, self._used[1] * per_second, self._memory,
            busy, stalled, failed, stages, dict(self._waits), slowest, profile, tuple(self._bars), self._files(slowest),
        )  # fmt: skip
