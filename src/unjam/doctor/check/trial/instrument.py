"""Patches torch's fetchers inside a trial, to record, time and hash every sample.

The dataset, the collate function and torch's processes are not changed. We patch only the two small
classes that call `dataset[i]`. In a worker that was not forked, its init function does that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from unjam.doctor.check.event_log import EventLog, worker_number
from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.recorded_dataset import Record, RecordedBatches, RecordedStream, batch_name
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.changes import apply_in_worker
from unjam.doctor.check.trial.line_sampler import LineSampler
from unjam.doctor.check.trial.tracking import (
    MOST_LOADED_TWICE,
    SKIPPED,
    ProcessState,
    TrialSetup,
    collate,
    epoch_of,
    load_sample,
    load_twice,
    record_changed_samples,
    seed_number,
)
from unjam.doctor.check.trial.trial_resources import note_connections

_setup: TrialSetup | None = None
_process: ProcessState | None = None


def install(setup: TrialSetup) -> None:
    """Patch torch's fetchers in this process and in its later forks."""
    global _setup  # noqa: PLW0603 - one trial per process
    from torch.utils.data._utils import fetch  # noqa: PLC0415 - imports torch

    if _setup is None or _setup.folder != setup.folder:
        note_connections(setup.folder, setup.servers)
    _setup = setup
    fetchers: tuple[Any, Any] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)  # noqa: SLF001
    for kind, function in zip(fetchers, (_fetch_map, _fetch_iterable), strict=True):
        kind.fetch = function
        if not getattr(kind, "_unjam", False):
            kind.__init__ = functools.partialmethod(_init_fetcher, kind.__init__)
            setattr(kind, "_unjam", True)  # noqa: B010 - torch does not declare it


@dataclass
class WorkerInit:
    """A worker_init_fn that prepares the trial, then calls the program's worker_init_fn."""

    setup: TrialSetup
    inner: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """Prepare this worker."""
        install(self.setup)
        _record_unjams_workers(self.setup)
        process = _process_state(worker, None)
        if self.setup.plan.plain or self.inner is None:
            return
        process.recorder.write("init")
        try:
            self.inner(worker)
        except BaseException as error:
            process.recorder.raised(error, "init")
            raise
        process.recorder.write("ready")


def _record_unjams_workers(setup: TrialSetup) -> None:
    """Record the samples of one of unjam's workers, which handle bad samples themselves."""
    global _setup  # noqa: PLW0603 - as above
    fetching = sys.modules.get("unjam.loader.worker.fetching")
    if fetching is None or getattr(fetching.MapFetcher, "_unjam", False):
        return
    _setup = replace(setup, plan=setup.plan.changed(tolerant=False))

    def map_made(self: Any, dataset: Any, collate: Any, **options: Any) -> None:
        init_map(self, dataset, collate, **options)
        self._dataset = RecordedBatches(self._dataset, _begin_recording(dataset, collate))

    def stream_made(self: Any, dataset: Any, collate: Any, **options: Any) -> None:
        init_stream(self, dataset, collate, **options)
        self._iterator = RecordedStream(self._iterator, _begin_recording(dataset, collate))

    init_map, init_stream = fetching.MapFetcher.__init__, fetching.IterableFetcher.__init__
    fetching.MapFetcher.__init__, fetching.IterableFetcher.__init__ = map_made, stream_made
    setattr(fetching.MapFetcher, "_unjam", True)  # noqa: B010 - it is not declared


def _begin_recording(dataset: Any, collate_fn: Any) -> Record:
    process = _process_state(worker_number(), SimpleNamespace(dataset=dataset, collate_fn=collate_fn))
    apply_in_worker(process.setup.plan, process.inventory)
    process.fetchers += 1
    process.samples = 0
    return lambda index, load: load_sample(process, str(index), load)


def _process_state(worker: int, fetcher: Any) -> ProcessState:
    """The state of this process. The first call opens its event log and arms the signals."""
    global _process  # noqa: PLW0603 - as above
    assert _setup is not None
    if _process is None or _process.recorder.pid != os.getpid():
        recorder = EventLog(_setup.folder, worker)
        write_stacks_on_signals(_setup.folder)
        _process = ProcessState(_setup, recorder, Randomness({}), Inventory({}))
        if worker >= 0 and _setup.plan.is_plain:
            LineSampler(_setup.folder)  # its thread keeps it
    if fetcher is not None:
        _process.roots = {"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn}
        _process.inventory = Inventory(_process.roots)
        _process.randomness = Randomness(_process.inventory.generators())
        self_inspection.object_names = _process.inventory.names
    return _process


def write_stacks_on_signals(folder: str) -> None:
    """Write stacks to a file on a signal and in a crash; this needs no ptrace permission."""
    file = open(f"{folder}/{os.getpid()}.stack", "w", encoding="utf-8")
    faulthandler.disable()  # torch may have replaced its handlers
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(self_inspection.STACK_SIGNAL, file=file, all_threads=True, chain=False)
    with contextlib.suppress(ValueError):  # not in the main thread: stacks only
        signal.signal(self_inspection.REPORT_SIGNAL, functools.partial(self_inspection.write_report, folder))


def _init_fetcher(self: Any, original_init: Callable[..., None], *args: Any) -> None:
    """Patched __init__ of a fetcher: once per worker and epoch; an iterable's iter() runs in it."""
    worker = worker_number()
    _process_state(worker, None).recorder.write("made")
    original_init(self, *args)
    process = _process_state(worker, self)
    if worker >= 0:
        apply_in_worker(process.setup.plan, process.inventory)
    if hasattr(self, "dataset_iter") and process.setup.plan.shard and worker >= 0:
        self.dataset_iter = itertools.islice(self.dataset_iter, worker, None, process.setup.plan.workers)
    process.fetchers += 1
    process.samples = 0
    if worker >= 0 and process.fetchers == 1:
        _keep_initial_seed()
    if process.setup.plan.reseed:
        process.randomness.seed_own(seed_number(f"{process.setup.epoch + process.fetchers}/{worker}"))
    if process.fetchers == 1:  # later states come from our seeds
        process.recorder.write("states", epoch=epoch_of(process), states=process.randomness.states())


def load_again(dataset: Any) -> None:
    """Load some samples again, at the end of a trial without workers."""
    if _process is not None and _process.recorder.pid == os.getpid():
        load_twice(_process, dataset)


def _keep_initial_seed() -> None:
    """Make torch.initial_seed() keep the worker's seed; our seeds for samples would change it."""
    import torch  # noqa: PLC0415 - imported by the program

    given = torch.initial_seed()
    torch.initial_seed = torch.random.initial_seed = lambda: given


def _fetch_map(self: Any, wanted: Any) -> Any:
    process = _process_state(worker_number(), None)
    process.batch_samples = []
    if not self.auto_collation:
        return collate(process, self.collate_fn, load_sample(process, str(wanted), lambda: self.dataset[wanted]))
    if left_out := process.setup.plan.without:
        wanted = [index for index in wanted if str(index) not in left_out]
        if not wanted:
            return []
    whole = getattr(self.dataset, "__getitems__", None)
    if whole and not type(self.dataset).__module__.startswith("torch.utils.data"):
        samples = list(load_sample(process, batch_name(wanted), lambda: whole(wanted)))
    else:
        samples = []
        for index in wanted:
            sample = load_sample(process, str(index), functools.partial(self.dataset.__getitem__, index))
            if sample is not SKIPPED:
                samples.append(sample)
        record_changed_samples(process, samples)
        process.first_indices += list(wanted)[: max(0, min(2, MOST_LOADED_TWICE - len(process.first_indices)))]
    return collate(process, self.collate_fn, samples)


def _fetch_iterable(self: Any, wanted: Any) -> Any:
    process = _process_state(worker_number(), None)
    process.batch_samples = []
    if self.ended:
        raise StopIteration
    if not self.auto_collation:
        return collate(
            process, self.collate_fn, load_sample(process, f"#{process.samples}", lambda: next(self.dataset_iter))
        )
    samples: list[Any] = []
    for _ in wanted:
        try:
            sample = load_sample(process, f"#{process.samples}", lambda: next(self.dataset_iter))
        except StopIteration:
            self.ended = True
            break
        if sample is not SKIPPED:
            samples.append(sample)
    record_changed_samples(process, samples)
    if not samples or (self.drop_last and len(samples) < len(wanted)):
        if samples:
            process.recorder.write("dropped", count=len(samples))
        raise StopIteration
    return collate(process, self.collate_fn, samples)
