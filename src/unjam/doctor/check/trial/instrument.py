"""Patches torch's fetchers inside a trial, to record, time and hash every sample.

The dataset, the collate function and torch's processes stay as they are. We patch only the two
small classes that call `dataset[i]`. In a worker that was not forked, its init function does that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.changes import ease_worker
from unjam.doctor.check.trial.event_log import EventLog
from unjam.doctor.check.trial.exception_words import described
from unjam.doctor.check.trial.looks import Looks
from unjam.doctor.check.trial.program_world import note_connections
from unjam.doctor.check.trial.tracking import (
    AGAIN,
    LEFT_OUT,
    Here,
    Setup,
    collate,
    epoch_of,
    listed,
    load_again,
    look_again,
    sample_of,
    seed_number,
)

_setup: Setup | None = None
_here: Here | None = None


def install(setup: Setup) -> None:
    """Patch torch's fetchers in this process and in its later forks."""
    global _setup  # noqa: PLW0603 - one trial per process
    from torch.utils.data._utils import fetch  # noqa: PLC0415 - imports torch

    if _setup is None or _setup.folder != setup.folder:
        note_connections(setup.folder, setup.servers)
    _setup = setup
    fetch._MapDatasetFetcher.fetch = _fetch_map  # type: ignore[method-assign]  # noqa: SLF001
    fetch._IterableDatasetFetcher.fetch = _fetch_iterable  # type: ignore[method-assign]  # noqa: SLF001
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001
        if not getattr(kind, "_unjam", False):
            kind.__init__ = functools.partialmethod(_init_fetcher, kind.__init__)  # type: ignore[method-assign, assignment]
            setattr(kind, "_unjam", True)  # noqa: B010 - torch does not declare it


@dataclass
class Hello:
    """A worker_init_fn that prepares the trial, then calls the program's worker_init_fn."""

    setup: Setup
    inner: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """Prepare this worker."""
        install(self.setup)
        _record_unjams_workers(self.setup)
        here = _process_state(worker, None)
        if self.setup.plan.plain or self.inner is None:
            return
        here.recorder.write("init")
        try:
            self.inner(worker)
        except BaseException as error:
            here.recorder.write("raised", stage="init", **described(error))
            raise
        here.recorder.write("ready")


def _record_unjams_workers(setup: Setup) -> None:
    """Do the same in a worker of unjam's, which handles bad samples itself: see `Setup`."""
    global _setup  # noqa: PLW0603 - as above
    fetching = sys.modules.get("unjam.loader.worker.fetching")
    if fetching is None or getattr(fetching.MapFetcher, "_unjam", False):
        return
    _setup = replace(setup, plan=setup.plan.changed(tolerant=False))

    def map_made(self: Any, dataset: Any, collate: Any, **options: Any) -> None:
        init_map(self, dataset, collate, **options)
        self._dataset = _RecordedSamples(self._dataset, _begin_recording(dataset, collate))

    def stream_made(self: Any, dataset: Any, collate: Any, **options: Any) -> None:
        init_stream(self, dataset, collate, **options)
        self._iterator = _RecordedStream(self._iterator, _begin_recording(dataset, collate))

    init_map, init_stream = fetching.MapFetcher.__init__, fetching.IterableFetcher.__init__
    fetching.MapFetcher.__init__, fetching.IterableFetcher.__init__ = map_made, stream_made
    setattr(fetching.MapFetcher, "_unjam", True)  # noqa: B010 - it is not declared


def _begin_recording(dataset: Any, collate_fn: Any) -> Here:
    here = _process_state(_worker(), SimpleNamespace(dataset=dataset, collate_fn=collate_fn))
    ease_worker(here.setup.plan, here.inventory)
    here.fetchers += 1
    here.samples = 0
    return here


class _RecordedSamples:
    """A dataset whose samples are recorded."""

    def __init__(self, dataset: Any, here: Here) -> None:
        self._dataset, self._here = dataset, here

    def __getitem__(self, index: Any) -> Any:
        return sample_of(self._here, str(index), lambda: self._dataset[index])

    def __getitems__(self, indices: Any) -> Any:
        return sample_of(self._here, listed(indices), lambda: self._dataset.__getitems__(indices))


class _RecordedStream:
    """An iterator whose samples are recorded."""

    def __init__(self, samples: Iterator[Any], here: Here) -> None:
        self._samples, self._here = samples, here

    def __iter__(self) -> _RecordedStream:
        return self

    def __next__(self) -> Any:
        return sample_of(self._here, f"#{self._here.samples}", lambda: next(self._samples))


def _process_state(worker: int, fetcher: Any) -> Here:
    """The state of this process. The first call opens its event log and arms the signals."""
    global _here  # noqa: PLW0603 - as above
    assert _setup is not None
    if _here is None or _here.recorder.pid != os.getpid():
        recorder = EventLog(_setup.folder, worker)
        arm(_setup.folder)
        _here = Here(_setup, recorder, Randomness({}), Inventory({}))
        if worker >= 0 and _setup.plan.is_plain:
            _here.looks = Looks(_setup.folder)
    if fetcher is not None:
        _here.roots = {"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn}
        _here.inventory = Inventory(_here.roots)
        _here.randomness = Randomness(_here.inventory.generators())
        self_inspection.names = _here.inventory.names
    return _here


def arm(folder: str) -> None:
    """Write stacks to a file on a signal and at a crash; this needs no ptrace permission."""
    file = open(f"{folder}/{os.getpid()}.stack", "w", encoding="utf-8")
    faulthandler.disable()  # torch may have replaced its handlers
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(self_inspection.STACK, file=file, all_threads=True, chain=False)
    with contextlib.suppress(ValueError):  # not in the main thread: stacks only
        signal.signal(self_inspection.LOOK, functools.partial(self_inspection.look, folder))


def _init_fetcher(self: Any, original_init: Callable[..., None], *args: Any) -> None:
    """Patched __init__ of a fetcher: once per worker and epoch; an iterable's iter() runs in it."""
    worker = _worker()
    _process_state(worker, None).recorder.write("made")
    original_init(self, *args)
    here = _process_state(worker, self)
    if worker >= 0:
        ease_worker(here.setup.plan, here.inventory)
    if hasattr(self, "dataset_iter") and here.setup.plan.shard and worker >= 0:
        self.dataset_iter = itertools.islice(self.dataset_iter, worker, None, here.setup.plan.workers)
    here.fetchers += 1
    here.samples = 0
    if worker >= 0 and here.fetchers == 1:
        _keep_initial_seed()
    if here.setup.plan.reseed:
        here.randomness.seed_own(seed_number(f"{here.setup.epoch + here.fetchers}/{worker}"))
    if here.fetchers == 1:  # later states come from our seeds
        here.recorder.write("states", epoch=epoch_of(here), states=here.randomness.states())


def once_more(dataset: Any) -> None:
    """Load some samples again, at the end of a trial without workers."""
    if _here is not None and _here.recorder.pid == os.getpid():
        load_again(_here, dataset)


def _keep_initial_seed() -> None:
    """Make torch.initial_seed() keep the worker's seed; our seeds for samples would change it."""
    import torch  # noqa: PLC0415 - imported by the program

    given = torch.initial_seed()
    torch.initial_seed = torch.random.initial_seed = lambda: given


def _worker() -> int:
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - as above

    info = get_worker_info()
    return info.id if info is not None else -1


def _fetch_map(self: Any, wanted: Any) -> Any:
    here = _process_state(_worker(), None)
    here.fresh = []
    if not self.auto_collation:
        return collate(here, self.collate_fn, sample_of(here, str(wanted), lambda: self.dataset[wanted]))
    if left_out := here.setup.plan.without:
        wanted = [index for index in wanted if str(index) not in left_out]
        if not wanted:
            return []
    whole = getattr(self.dataset, "__getitems__", None)
    if whole and not type(self.dataset).__module__.startswith("torch.utils.data"):
        samples = list(sample_of(here, listed(wanted), lambda: whole(wanted)))
    else:
        samples = []
        for index in wanted:
            sample = sample_of(here, str(index), functools.partial(self.dataset.__getitem__, index))
            if sample is not LEFT_OUT:
                samples.append(sample)
        look_again(here, samples)
        here.firsts += list(wanted)[: max(0, min(2, AGAIN - len(here.firsts)))]
    return collate(here, self.collate_fn, samples)


def _fetch_iterable(self: Any, wanted: Any) -> Any:
    here = _process_state(_worker(), None)
    here.fresh = []
    if self.ended:
        raise StopIteration
    if not self.auto_collation:
        return collate(here, self.collate_fn, sample_of(here, f"#{here.samples}", lambda: next(self.dataset_iter)))
    samples: list[Any] = []
    for _ in wanted:
        try:
            sample = sample_of(here, f"#{here.samples}", lambda: next(self.dataset_iter))
        except StopIteration:
            self.ended = True
            break
        if sample is not LEFT_OUT:
            samples.append(sample)
    look_again(here, samples)
    if not samples or (self.drop_last and len(samples) < len(wanted)):
        if samples:
            here.recorder.write("dropped", count=len(samples))
        raise StopIteration
    return collate(here, self.collate_fn, samples)
