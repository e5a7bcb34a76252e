"""Records samples where they are loaded: in a worker, or in the program without workers.

Looking at a sample costs time: its hash and the states of the random generators. We look at all
samples while that costs little, then at every second, every fourth and so on, chosen by a hash of
the index, so that every worker, epoch and rank looks at the same ones.
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

from unjam.doctor.check.growing import resources
from unjam.doctor.check.inventory import Inventory
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.target import held, mappings, observed_faults, openers, reach
from unjam.doctor.check.target.left_held import HeldThings
from unjam.doctor.check.target.observer import Observer, worker_number
from unjam.doctor.check.target.openers import collect_no_more, collect_opened
from unjam.doctor.check.target.surroundings import Surroundings
from unjam.doctor.facts.digest import digest, signature, weigh

SHARE = 0.03  # of the loading time that looking may take
MOST_LOOKS = 3000
SURE = 24  # samples of each epoch that are looked at in any case
TELL_EVERY = 0.05
MOST_LEFT = 200
MOST_SIGNED = 4000  # samples of a stream, in each worker and epoch
MEASURE = 0.4


@dataclass(slots=True)
class _Noted:
    """How things were before a sample was loaded."""

    looked: bool = False
    states: dict[str, str] = field(default_factory=dict)
    read: int = 0
    held: dict[str, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


class SampleObserver:
    """The samples of this process."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.pid = os.getpid()
        self.fetchers = 0
        self.position = 0
        self._level = self._looks = 0
        self._looking = 0.0
        self._began = time.perf_counter()
        self._told = 0.0
        self._sum: dict[str, Any] = {}
        self._fresh = True
        self._sure, self._step = SURE, 1  # looks left in this epoch, whatever they cost
        self._randomness: Randomness | None = None
        self._surroundings: Surroundings | None = None
        self._things: HeldThings | None = None
        self._told_left = self._loads = self._batches = self._signed = 0
        self._measured = 0.0
        self._written: set[tuple[str, bool]] = set()
        self._mapped = 0.0
        self._first = True
        self._connections: dict[int, str] = {}
        self._writable: dict[str, int] = {}  # open for writing before this worker began: path -> size

    def begins(self, fetcher: Any) -> None:
        """A worker begins an epoch, or the program without workers."""
        began = time.perf_counter()
        self._tell()  # what is left of the epoch before
        self.fetchers += 1
        self.position = 0
        self._fresh = True
        self._sure, self._signed = SURE, 0
        with contextlib.suppress(Exception):
            self._step = max(1, len(fetcher.dataset) // SURE)
        with contextlib.suppress(Exception):
            inventory = Inventory({"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn})
            self._randomness = Randomness(inventory.generators())
            if worker_number() >= 0 and self.fetchers == 1:
                files = reach.writable_files(inventory)
                self._connections = reach.inherited_connections(inventory)
                self._writable = files if files and reach.writes(fetcher.dataset) else {}
        number = worker_number()
        with contextlib.suppress(Exception):
            if number >= 0 and self.fetchers == 1:
                reach.note_start()
            self._things = HeldThings(fetcher.dataset, fetcher.collate_fn)
        if self._surroundings is None or number < 0:
            self._surroundings = Surroundings(fetcher.dataset, fetcher.collate_fn)
        fields: dict[str, Any] = {"e": self.fetchers - 1, "held": self._held(fetcher.dataset)}
        if number >= 0:
            fields["base"] = sys.modules["torch.utils.data._utils.worker"].get_worker_info().seed - number
            if self.fetchers == 1:
                # runs when the worker ends
                multiprocessing.util.Finalize(self, SampleObserver.ends, args=(self, fetcher.dataset), exitpriority=10)
        self.observer.write("fetcher", worker=number, **fields)
        self._looking += time.perf_counter() - began

    def ends(self, dataset: Any) -> None:
        """The worker ends."""
        self._tell()
        for path, size in self._writable.items():
            place = openers.line_of(path)
            if reach.size_of(path) > size:
                at = {"file": place.file, "line": place.line} if place is not None else {}
                self.observer.write("written", path=path, worker=worker_number(), **at)
        self.observer.write("fetched", worker=worker_number(), e=self.fetchers - 1, held=self._held(dataset))

    def _held(self, dataset: Any) -> dict[str, str]:
        around = self._surroundings.read() if self._surroundings is not None else {}
        return {**held.fingerprint(dataset), **around}

    def sample(self, index: Any, load: Callable[[], Any]) -> Any:
        """Load one sample, and perhaps look at it."""
        noted, raised = _Noted(), ""
        with self.observer.safely():
            self._note(noted, index)
        began = time.perf_counter()
        try:
            sample = load()
        except StopIteration:
            raise
        except BaseException as error:
            raised = type(error).__qualname__
            if isinstance(error, (Exception, SystemExit)):
                self.observer.failed(
                    "sample", error, i=str(index)[:200], worker=worker_number(), fetcher=self.fetchers - 1,
                    files=openers.read_only(),
                )  # fmt: skip
            raise
        finally:
            took = time.perf_counter() - began
            with self.observer.safely():
                self._note_after(noted, index, raised)
        with self.observer.safely():
            self._count(noted, index, sample, took)
        return sample

    def _note(self, noted: _Noted, index: Any) -> None:
        """Note how things are before the sample is loaded."""
        noted.looked = self._looks_at(index)
        noted.states = self._states() if noted.looked else {}
        noted.read = _bytes_read() if noted.looked else 0
        noted.held = self._things.read() if self._things is not None else {}
        now = time.monotonic()
        if now - self._mapped > MEASURE:
            self._mapped = now
            mappings.tell(self.observer)
        observed_faults.latest.clear()
        openers.begin_sample()
        noted.sent = {fd: reach.traffic(fd) for fd in self._connections}
        noted.files = collect_opened() if noted.looked else []

    def _note_after(self, noted: _Noted, index: Any, raised: str) -> None:
        """Write down what the sample did beside being loaded."""
        collect_no_more()
        self._tell_written()
        for fd in [fd for fd, before in noted.sent.items() if reach.traffic(fd) > before]:
            self.observer.write("asked", target=self._connections.pop(fd), worker=worker_number(), pid=os.getpid())
        if self._things is not None and self._loads < 2:
            self._loads += 1
            self._things.find()
        if self._things is not None and self._told_left < MOST_LEFT:
            self._tell_left(self._things.left(noted.held), index, raised)

    def _count(self, noted: _Noted, index: Any, sample: Any, took: float) -> None:
        """Count a sample that was loaded, and perhaps look at it."""
        if self._first:
            self._first = False
            mappings.tell(self.observer)
        now, known = time.perf_counter(), self._sum
        known["n"] = known.get("n", 0) + 1
        known["s"] = known.get("s", 0.0) + took
        if took > known.get("max", 0.0):
            known["max"], known["i"] = took, str(index)[:80]
        if str(index).startswith("#") and self._signed < MOST_SIGNED:
            self._signed += 1
            with contextlib.suppress(Exception):
                known.setdefault("q", []).append(signature(sample))
        if noted.looked:
            with contextlib.suppress(Exception):
                self._look(index, sample, noted.states, took, _bytes_read() - noted.read, noted.files)
            self._looking += time.perf_counter() - now
        elif now - self._told > TELL_EVERY:
            self._tell()

    def _tell_left(self, left: list[tuple[str, str, Any]], index: Any, raised: str) -> None:
        """Write down what the sample took and did not give back."""
        for path, kind, place in left:
            self._told_left += 1
            at = {"file": place.file, "line": place.line} if place is not None else {}
            self.observer.write(
                "left", path=path, kind=kind, i=str(index)[:200], worker=worker_number(), pid=os.getpid(), raised=raised, **at
            )  # fmt: skip

    def _looks_at(self, index: Any) -> bool:
        if self._looks > MOST_LOOKS:
            return False
        number = zlib.crc32(str(index).encode())
        if self._fresh:
            self._fresh = False
            return True
        if self._sure and number % self._step == 0:
            self._sure -= 1
            return True
        if self._looks > 24 and self._looking > SHARE * (time.perf_counter() - self._began):
            self._level += 1
            self._began, self._looking = time.perf_counter(), 0.0
        return number & ((1 << self._level) - 1) == 0

    def _states(self) -> dict[str, str]:
        try:
            return self._randomness.states() if self._randomness is not None else {}
        except Exception:  # noqa: BLE001 - a generator that cannot be read
            return {}

    def _look(self, index: Any, sample: Any, before: dict[str, str], took: float, read: int, files: list[str]) -> None:
        self._looks += 1
        whole, leaves = digest(sample)
        after = self._states()
        drew = {name: state for name, state in before.items() if after.get(name) != state}
        seeded = observed_faults.latest
        # seeded, and nothing drawn from it since: the state is still that of the seed
        idle = {name: place for name, (state, place) in seeded.items() if after.get(name) == state}
        self.observer.write(
            "sample", i=held.plain_index(index) if not str(index).startswith("#") else str(index), e=self.fetchers - 1,
            worker=worker_number(), d=whole, l=leaves, drew={name: one for name, one in drew.items() if name not in idle},
            seeded=sorted(seeded), idle={name: [place.file, place.line] for name, place in idle.items()},
            s=round(took, 6), none=sample is None,
            read=read, files=files[:8], size=weigh(sample)[0] or len(repr(sample)[:10_000]),
        )  # fmt: skip

    def _tell_written(self) -> None:
        """Write down the files that this sample wrote, and whether it read them again."""
        for path, place, is_read in openers.written():
            key = path, is_read
            if worker_number() >= 0 and key not in self._written and len(self._written) < MOST_LEFT:
                self._written.add(key)
                at = {"file": place.file, "line": place.line} if place is not None else {}
                self.observer.write(
                    "rewritten", path=path, worker=worker_number(), pid=os.getpid(), locks=openers.locks, read=is_read, **at
                )  # fmt: skip

    def _tell(self) -> None:
        if self._sum:
            self._told = time.perf_counter()
            self.observer.write("loaded", worker=worker_number(), e=self.fetchers - 1, **self._sum)
            if self._told - self._measured > MEASURE and worker_number() >= 0:
                self._measured = self._told
                self.observer.write(
                    "moment", e=self.fetchers - 1, n=self._batches, worker=worker_number(), **resources(), **openers.busiest()
                )  # fmt: skip
            self._sum = {}

    def collate(self, function: Callable[[Any], Any], samples: Any) -> Any:
        """Collate a batch."""
        began = time.perf_counter()
        try:
            batch = function(samples)
        except Exception as error:
            self.observer.failed("collate", error, worker=worker_number(), fetcher=self.fetchers - 1)
            raise
        now = time.perf_counter()
        self._sum["c"] = self._sum.get("c", 0.0) + now - began
        self._sum["b"] = self._sum.get("b", 0) + 1
        self._batches += 1
        if now - self._told > TELL_EVERY:
            self._tell()
        return batch


def _bytes_read() -> int:
    """The bytes that this process has read from files, pipes and sockets."""
    try:
        with open("/proc/self/io", "rb") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def patch_fetchers(module: ModuleType, observer: Observer) -> None:
    """Patch torch's two fetchers."""
    here: list[SampleObserver] = []

    def state(fetcher: Any) -> SampleObserver:
        """The samples of this fetcher; a process without workers may use several in turns."""
        known = getattr(fetcher, "unjam_samples", None)
        if known is None or known.pid != os.getpid():
            own = worker_number() >= 0
            known = here[-1] if own and here and here[-1].pid == os.getpid() else SampleObserver(observer)
            here[:] = [known] if own else here
            fetcher.unjam_samples = known
        return known

    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):  # noqa: SLF001 - torch's names
        _patch_init(kind, state)


def _patch_init(kind: Any, state: Callable[[Any], SampleObserver]) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        try:
            make(this, *args, **kwargs)
        except Exception as error:
            state(this).observer.failed("made", error, worker=worker_number())
            raise
        here = state(this)
        with here.observer.safely():
            if not here.observer.active:
                return
            here.begins(this)
            this.collate_fn = functools.partial(here.collate, this.collate_fn)
            if hasattr(this, "dataset_iter"):
                this.dataset_iter = _Stream(this.dataset_iter, here)
            elif not getattr(this.dataset, "__getitems__", None) or type(this.dataset).__module__.startswith("torch."):
                this.dataset = _Samples(this.dataset, here)
            else:
                this.dataset = _Batches(this.dataset, here)

    kind.__init__ = made


class _Samples:
    """Stands for a dataset in torch's fetcher."""

    def __init__(self, dataset: Any, here: SampleObserver) -> None:
        self._dataset, self._here = dataset, here

    def __getitem__(self, index: Any) -> Any:
        return self._here.sample(index, functools.partial(self._dataset.__getitem__, index))


class _Batches(_Samples):
    """The same, for a dataset that loads whole batches."""

    def __getitems__(self, wanted: Any) -> Any:
        name = ",".join(str(one) for one in list(wanted)[:8])
        return self._here.sample(name, functools.partial(self._dataset.__getitems__, wanted))


class _Stream:
    """Stands for the iterator of a stream."""

    def __init__(self, inner: Any, here: SampleObserver) -> None:
        self._inner, self._here = inner, here

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        here = self._here
        sample = here.sample(f"#{here.position}", functools.partial(next, self._inner))
        here.position += 1
        return sample
