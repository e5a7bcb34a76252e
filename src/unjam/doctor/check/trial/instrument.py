"""What is put around torch's own fetching inside a trial: every sample is announced, timed and named by its content.

The dataset, the collate function and torch's processes are the program's own; only the two small classes that call
`dataset[i]` are replaced. A worker that was not forked is reached through its init function.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.changes import ease_worker
from unjam.doctor.check.trial.event_log import Recorder
from unjam.doctor.check.trial.exception_words import described
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
    """Replace torch's fetchers in this process, and so in those forked from it."""
    global _setup  # noqa: PLW0603 - one trial a process
    from torch.utils.data._utils import fetch  # noqa: PLC0415 - the program imports torch when it wants to

    _setup = setup
    fetch._MapDatasetFetcher.fetch = _fetch_map  # type: ignore[method-assign]  # noqa: SLF001
    fetch._IterableDatasetFetcher.fetch = _fetch_iterable  # type: ignore[method-assign]  # noqa: SLF001
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001
        if not getattr(kind, "_unjam", False):
            kind.__init__ = functools.partialmethod(_made, kind.__init__)  # type: ignore[method-assign, assignment]
            setattr(kind, "_unjam", True)  # noqa: B010 - torch does not declare it


@dataclass
class Hello:
    """Stands before the program's own worker_init_fn."""

    setup: Setup
    inner: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """As torch calls it."""
        install(self.setup)
        here = _arrive(worker, None)
        if self.setup.plan.plain or self.inner is None:
            return
        here.recorder.write("init")
        try:
            self.inner(worker)
        except BaseException as error:
            here.recorder.write("raised", stage="init", **described(error))
            raise
        here.recorder.write("ready")


def _arrive(worker: int, fetcher: Any) -> Here:
    """The first thing in a process: open its file, arm the signals."""
    global _here  # noqa: PLW0603 - as above
    assert _setup is not None
    if _here is None or _here.recorder.pid != os.getpid():
        recorder = Recorder(_setup.folder, worker)
        arm(_setup.folder)
        _here = Here(_setup, recorder, Randomness({}), Inventory({}))
    if fetcher is not None:
        _here.roots = {"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn}
        _here.inventory = Inventory(_here.roots)
        _here.randomness = Randomness(_here.inventory.generators())
        self_inspection.names = _here.inventory.names
    return _here


def arm(folder: str) -> None:
    """Stacks on a signal and at a crash, without anybody's permission."""
    file = open(f"{folder}/{os.getpid()}.stack", "w", encoding="utf-8")
    faulthandler.disable()  # torch has put its own handlers over it
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(self_inspection.STACK, file=file, all_threads=True, chain=False)
    with contextlib.suppress(ValueError):  # not in the main thread: the stack alone must do
        signal.signal(self_inspection.LOOK, functools.partial(self_inspection.look, folder))


def _made(self: Any, torchs: Callable[..., None], *args: Any) -> None:
    """A fetcher is made once in each worker and epoch; an iterable's iter() is called here."""
    worker = _worker()
    _arrive(worker, None).recorder.write("made")
    torchs(self, *args)
    here = _arrive(worker, self)
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
    if here.fetchers == 1:  # later ones of a worker that persists have seen our seeds
        here.recorder.write("states", epoch=epoch_of(here), states=here.randomness.states())


def once_more(dataset: Any) -> None:
    """At the end of a trial without workers."""
    if _here is not None and _here.recorder.pid == os.getpid():
        load_again(_here, dataset)


def _keep_initial_seed() -> None:
    """torch.initial_seed() goes on saying what torch gave this worker, whatever seeds its samples get from us."""
    import torch  # noqa: PLC0415 - imported by the program

    given = torch.initial_seed()
    torch.initial_seed = torch.random.initial_seed = lambda: given


def _worker() -> int:
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - as above

    info = get_worker_info()
    return info.id if info is not None else -1


def _fetch_map(self: Any, wanted: Any) -> Any:
    here = _arrive(_worker(), None)
    here.fresh = []
    if not self.auto_collation:
        return collate(here, self.collate_fn, sample_of(here, str(wanted), lambda: self.dataset[wanted]))
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
    here = _arrive(_worker(), None)
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
