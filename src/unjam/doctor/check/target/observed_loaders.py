"""Records the loaders of a process: what each draws, delivers and costs, epoch by epoch.

At a loader's first iter(), it forks a twin of the process for the trials.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Collection
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

from unjam.doctor.check.resource_usage import containers, resources
from unjam.doctor.check.target import file_events
from unjam.doctor.check.target.describe_loader import composed_at, describe, fingerprint, generators, plain_index
from unjam.doctor.check.target.device_observer import DeviceObserver
from unjam.doctor.check.target.first_iter_hook import is_probe
from unjam.doctor.check.target.mapped_files import record_mapped_files
from unjam.doctor.check.target.observer import Observer, current_folder, length_of, rank, users_line
from unjam.doctor.check.target.outside_state import OutsideState
from unjam.doctor.facts.digest import unreadable
from unjam.doctor.facts.program_facts import ResourceUsage
from unjam.doctor.facts.recording import encode
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.by_identity import ByIdentity

MOST_INDICES = 20_000
MEASURE_EVERY = 0.4  # seconds between two readings of what this process holds
PROGRESS_EVERY = 0.002  # seconds between two events about progress


class Epoch:
    """One epoch of a loader."""

    def __init__(self, loader: LoaderRecord, number: int, observer: Observer) -> None:
        self.loader, self.number = loader, number
        self.drawn: list[Any] = []
        self.draws = self.batches = self.samples = 0
        self.waited = self.first = 0.0
        self.sampling = 0.0  # seconds in the sampler
        self.optimizer = 0
        self.began = time.monotonic()
        self.steps = self.steps_then = observer.steps
        self.grad = False
        self.last_progress = self.last_measurement = 0.0
        self.over = False
        self.before: dict[str, str] = {}
        self.changed: list[str] = []  # paths in the dataset that the program changed meanwhile
        self.unused = 0  # batches before the first step of an optimizer


class LoaderRecord:
    """One loader of this process."""

    def __init__(self, number: int, made: Place | None) -> None:
        self.number, self.made = number, made
        self.epochs = self.batches = 0  # batches: of the completed epochs
        self.current: Epoch | None = None
        self.outside: OutsideState | None = None  # set at the first iter()


class LoaderObserver:
    """Patches torch's loader in this process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._records: ByIdentity[LoaderRecord] = ByIdentity()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._tokens: ByIdentity[int] = ByIdentity()
        self._generators: list[Any] = []  # kept alive, because they are numbered by identity
        self._count = self._last_token = 0
        self._pid = os.getpid()
        self.device = DeviceObserver(observer)

    # -- called by the patches ---------------------------------------------------------------------

    def loader_created(self, loader: Any, frame: FrameType | None) -> None:
        """The program created a loader."""
        if not self._observer.active or is_probe(loader):
            return
        self._in_this_process()
        self._add(loader, users_place(frame))

    def _add(self, loader: Any, made: Place | None) -> LoaderRecord:
        self._count += 1
        record = LoaderRecord(self._count, made)
        self._records.put(loader, record)
        return record

    def epoch_started(self, iterator: Any, loader: Any, frame: FrameType | None) -> None:
        """The program starts an epoch, with a new iterator or again with a persistent one."""
        if not self._observer.active or is_probe(loader):
            return
        self._in_this_process()
        record = self._records.get(loader) or self._add(loader, None)
        observer = self._observer
        # truncated files must not be read through their mappings
        unreadable[:] = [True] if record_mapped_files(observer) else []
        if record.outside is None:
            record.outside = OutsideState(loader.dataset, loader.collate_fn)
            self._describe(loader, record, record.outside, frame)
            from unjam.doctor.check.target.twin_fork import fork_twin  # noqa: PLC0415 - torch is imported by now

            forked = not observer.stops_early and fork_twin(observer, loader, record.made, frame, record.number)
            if forked and not observer.captured:
                observer.captured = True
                atexit.register(observer.record_exit)  # runs before functions that were registered earlier
        self._close(record.current)
        epoch = record.current = Epoch(record, record.epochs, observer)
        record.epochs += 1
        epoch.before = {**fingerprint(loader.dataset), **record.outside.read()}
        iterator.unjam_epoch = epoch
        self._open.add(iterator)
        # for an iterator that is discarded before its end
        weakref.finalize(iterator, self._dropped, epoch, os.getpid()).atexit = False
        observer.write(
            "begin", loader=record.number, e=epoch.number, expected=length_of(loader), hashes=epoch.before,
            folder=current_folder(), place=encode(users_place(frame)),
        )  # fmt: skip
        if observer.stops_early:
            os._exit(0)
        self.device.patch()

    def iterator_seeded(self, iterator: Any) -> None:
        """Record the seed of a new iterator: it links the logs of its workers to it."""
        epoch = _epoch_of(iterator)
        if epoch is not None:
            seed = getattr(iterator, "_base_seed", 0)
            self._observer.write("seed", loader=epoch.loader.number, e=epoch.number, seed=int(seed or 0))

    def indices_drawn(self, iterator: Any, index: Any, seconds: float) -> None:
        """The sampler returned the next index or batch of indices."""
        epoch = _epoch_of(iterator)
        if epoch is None:
            return
        epoch.sampling += seconds
        batch = getattr(iterator, "_auto_collation", False) and isinstance(index, Collection)
        found = [*index] if batch else [index]
        epoch.draws += len(found)
        if len(epoch.drawn) < MOST_INDICES:
            epoch.drawn.extend(map(plain_index, found))

    def batch_received(self, iterator: Any, waited: float) -> None:
        """The program got a batch."""
        epoch = _epoch_of(iterator)
        if epoch is None:
            return
        epoch.batches += 1
        epoch.steps_then = self._observer.steps
        if epoch.steps_then > epoch.steps:
            epoch.optimizer = self._observer.optimizer
        if epoch.steps_then == epoch.steps:
            epoch.unused = epoch.batches - 1
        if epoch.batches == 1:
            epoch.first = waited
            epoch.grad = bool(sys.modules["torch"].is_grad_enabled())
        else:
            epoch.waited += waited
        now = time.monotonic()
        if now - epoch.last_progress > PROGRESS_EVERY:
            epoch.last_progress = now
            self._observer.write(
                "got", loader=epoch.loader.number, e=epoch.number, n=epoch.batches, steps=self._observer.steps - epoch.steps,
                waited=epoch.waited, first=epoch.first, sampling=epoch.sampling, s=now - epoch.began,
            )  # fmt: skip
        if now - epoch.last_measurement > MEASURE_EVERY:
            epoch.last_measurement = now
            used, found = resources(), containers(sys._getframe(2))  # noqa: SLF001 - the frame that asked for the batch
            line = file_events.busiest_line()
            usage = ResourceUsage(-1, epoch.batches, used.get("memory", 0), used.get("descriptors", 0), found, line)
            self._observer.record(usage, loader=epoch.loader.number, e=epoch.number)

    def epoch_finished(self, iterator: Any) -> None:
        """The epoch is complete: all batches were delivered."""
        epoch = _epoch_of(iterator)
        if epoch is not None:
            if getattr(iterator, "_num_workers", 0):
                now = fingerprint(iterator._dataset)  # noqa: SLF001 - torch's name
                epoch.changed = [path for path, value in now.items() if epoch.before.get(path, value) != value]
            self._close(epoch, done=True)

    def exception_raised(self, iterator: Any, stage: str, error: BaseException) -> None:
        """The program gets an exception instead of a batch."""
        epoch = _epoch_of(iterator)
        where = {"loader": epoch.loader.number, "epoch": epoch.number} if epoch is not None else {}
        self._observer.record_failure(stage, error, **where)

    def open_epochs(self) -> list[tuple[int, int, int, int]]:
        """The unfinished epochs: loader, epoch, its batches, batches of all epochs of the loader."""
        open_now = map(_epoch_of, list(self._open))
        return [
            (one.loader.number, one.number, one.batches, one.loader.batches + one.batches)
            for one in open_now
            if one is not None and not one.over
        ]

    def close_all(self) -> None:
        """Record the unfinished epochs, because the process ends."""
        if os.getpid() == self._pid:
            for iterator in list(self._open):
                self._close(_epoch_of(iterator))

    def _dropped(self, epoch: Epoch, pid: int) -> None:
        if os.getpid() == pid:
            with contextlib.suppress(Exception):
                self._close(epoch)

    # -- recording ---------------------------------------------------------------------------------

    def _close(self, epoch: Epoch | None, *, done: bool = False) -> None:
        if epoch is None or epoch.over:
            return
        epoch.over = True
        epoch.loader.batches += epoch.batches
        self.device.record_counts()
        observer = self._observer
        observer.write(
            "epoch", loader=epoch.loader.number, e=epoch.number, done=done, batches=epoch.batches, draws=epoch.draws,
            indices=epoch.drawn, order=zlib.crc32(repr(epoch.drawn).encode()), waited=epoch.waited, first=epoch.first,
            s=time.monotonic() - epoch.began,
            # steps after the last batch of an unfinished epoch do not belong to it
            steps=(observer.steps if done else epoch.steps_then) - epoch.steps, grad=epoch.grad, rank=rank(),
            changed=epoch.changed, unused=epoch.unused, sampling=epoch.sampling,
            optimizer=epoch.optimizer or (observer.optimizer if done and observer.steps > epoch.steps else 0),
            **resources(),
        )  # fmt: skip

    def _describe(self, loader: Any, record: LoaderRecord, outside: OutsideState, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            thread = threading.current_thread()
            about = replace(
                describe(loader, self._token),
                generators=[self._number(one) for one in generators(loader)],
                unused=outside.unused(loader.dataset),
                files=sorted(outside.files),
                thread="" if thread is threading.main_thread() else thread.name,
            )
            made, place = encode(record.made), encode(users_place(frame))
            self._observer.write("loader", loader=record.number, about=encode(about), made=made, place=place)

    def _token(self, obj: Any) -> int:
        """A number that identifies an object of this process."""
        token = self._tokens.get(obj)
        if token is None:
            self._last_token += 1
            token = self._last_token
            self._tokens.put(obj, token)
        return token

    def _number(self, generator: Any) -> int:
        for number, known in enumerate(self._generators):
            if known is generator:
                return number
        self._generators.append(generator)
        return len(self._generators) - 1

    def _in_this_process(self) -> None:
        if os.getpid() != self._pid:  # a fork has loaders of its own
            self._pid = os.getpid()
            self._open.clear()


def _epoch_of(iterator: Any) -> Epoch | None:
    epoch: Epoch | None = getattr(iterator, "unjam_epoch", None)
    return epoch


def patch_datasets(module: ModuleType) -> None:
    """Note where the program concatenates datasets or creates subsets of them."""
    for kind in (module.Subset, module.ConcatDataset):
        init = kind.__init__

        @functools.wraps(init)
        def made(this: Any, *args: Any, _init: Any = init, **kwargs: Any) -> None:
            _init(this, *args, **kwargs)
            with contextlib.suppress(Exception):
                if (place := users_line()) is not None:
                    composed_at.put(this, place)

        kind.__init__ = made


def patch_loaders(module: ModuleType, observer: Observer) -> None:  # noqa: PLR0915 - one function for each patch
    """Patch torch's DataLoader and its iterators."""
    loaders = LoaderObserver(observer)
    observer.open_epochs = loaders.open_epochs
    atexit.register(loaders.close_all)
    loader, base = module.DataLoader, module._BaseDataLoaderIter  # noqa: SLF001 - torch's names
    init, begin, draw, take, reset = loader.__init__, base.__init__, base._next_index, base.__next__, base._reset  # noqa: SLF001
    iterate = loader.__iter__

    @functools.wraps(init)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(this, *args, **kwargs)
        except Exception as error:
            observer.record_failure("constructor", error, place=users_line())
            raise
        with contextlib.suppress(Exception):
            loaders.loader_created(this, sys._getframe(1))  # noqa: SLF001

    @functools.wraps(iterate)
    def iterated(this: Any) -> Any:
        try:
            return iterate(this)
        except Exception as error:
            observer.record_failure("iter", error, place=users_line())
            raise

    @functools.wraps(begin)
    def begun(this: Any, its_loader: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(Exception):
            loaders.epoch_started(this, its_loader, sys._getframe(1))  # noqa: SLF001
        asked = time.monotonic()
        begin(this, its_loader, *args, **kwargs)  # with iter(sampler), before any worker is started
        with contextlib.suppress(Exception):
            this.unjam_epoch.sampling += time.monotonic() - asked
            loaders.iterator_seeded(this)

    @functools.wraps(reset)
    def was_reset(this: Any, its_loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002 - torch's
        if not first_iter:
            with contextlib.suppress(Exception):
                loaders.epoch_started(this, its_loader, sys._getframe(1))  # noqa: SLF001
        reset(this, its_loader, first_iter)
        if not first_iter:
            with contextlib.suppress(Exception):
                loaders.iterator_seeded(this)

    @functools.wraps(draw)
    def drawn(this: Any) -> Any:
        asked = time.monotonic()
        try:
            index = draw(this)
        except StopIteration:
            raise
        except Exception as error:
            loaders.exception_raised(this, "sampler", error)
            raise
        with contextlib.suppress(Exception):
            loaders.indices_drawn(this, index, time.monotonic() - asked)
        return index

    @functools.wraps(take)
    def taken(this: Any) -> Any:
        idle, asked = loaders.device.is_idle(), time.monotonic()
        try:
            batch = take(this)
        except StopIteration:
            with contextlib.suppress(Exception):
                loaders.epoch_finished(this)
            raise
        except Exception as error:
            loaders.exception_raised(this, "next", error)
            raise
        with contextlib.suppress(Exception):
            waited = time.monotonic() - asked
            loaders.batch_received(this, waited)
            if idle:
                loaders.device.idle += waited
        return batch

    loader.__init__, loader.__iter__ = made, iterated
    base.__init__, base._next_index, base.__next__, base._reset = begun, drawn, taken, was_reset  # noqa: SLF001
    # `next` is an alias of `__next__` in some versions
    if "next" in vars(base):
        base.next = taken
