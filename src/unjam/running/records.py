"""What the program's own process sees of its loaders: when it asked for a batch, when it got one, who made it and how."""

from __future__ import annotations

import os
import time
import weakref
from array import array
from collections import Counter, deque
from types import FrameType
from typing import Any

from unjam.evidence.run import Failure, LoaderRun, Made, Wait
from unjam.evidence.trial import Place, users_place
from unjam.running import pages
from unjam.running.settings import Settings

MOST_WAITS = 200_000
MOST_MADE = 50_000
_TAIL = 3  # stamps behind the samples': collating begins, packing begins, done


class Record:
    """One loader of this process."""

    def __init__(self, loader: Any, place: Place | None, settings: Settings) -> None:
        self._settings = settings
        self.place = place
        self.kind, self.dataset = type(loader).__name__, type(loader.dataset).__qualname__
        self.workers, self.batch_size = loader.num_workers, loader.batch_size
        self.persistent = bool(loader.persistent_workers)
        self.note = "its class makes its own iterator"
        self.recorders: list[Any] = []
        self.waits: deque[Wait] = deque(maxlen=MOST_WAITS)
        self._raw: list[tuple[int, Any, bytes]] = []
        self._made: deque[Made] = deque(maxlen=MOST_MADE)
        self._seeds: list[int] = []
        self._hands: dict[int, int] = {}
        self.iterators = self.epochs = self.batches = 0
        self._nanoseconds: Counter[str] = Counter()
        self._first, self._last = True, 0
        self._opening, self._starts = 0, array("q")
        self.loaders = 0
        self.failure: Failure | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two loaders one."""
        return self.place, self.kind, self.dataset, self.workers, self.batch_size, self.persistent

    # -- what happens, as cheap as it can be -------------------------------------------------------------------------

    def started(self, begun: int, done: int) -> None:
        """An iterator was made."""
        self._opening = done - begun
        self._first, self._last = True, 0

    def seed(self, seed: int) -> None:
        """Torch drew the seed of an epoch: the workers' files are named after it."""
        self.iterators += 1
        self._seeds.append(seed if self.workers else os.getpid())

    def waited(self, asked: int, got: int) -> None:
        """The program has its batch."""
        self.batches += 1
        totals = self._nanoseconds
        if self._last:
            totals["trained"] += asked - self._last
        if self._first:
            self.epochs += 1
            self._starts.append(self._opening + got - asked)
            self._opening = 0
        else:
            totals["waited"] += got - asked
        self.waits.append(Wait(asked, got, self._first))
        self._first, self._last = False, got

    def ended(self, asked: int, got: int) -> None:
        """The epoch is over."""
        if self._last:
            self._nanoseconds["trained"] += asked - self._last
        self._nanoseconds["waited"] += got - asked
        self._last = 0
        if self.persistent:
            self._first = True

    def raised(self, asked: int, got: int, error: BaseException) -> None:
        """The program gets an exception instead of a batch."""
        self.ended(asked, got)
        if isinstance(error, Exception):
            self.failure = Failure(words_of(error), 1, decision="raise")

    def delivered(self, work: Any, facts: Any) -> None:
        """Unjam's workers made a batch, and say how."""
        self._raw.append((work.sent_to or 0, work.indices, facts.times))
        if len(self._raw) >= 256:
            self._count()

    # -- what is known at the end --------------------------------------------------------------------------------------

    def _count(self) -> None:
        raw, self._raw = self._raw, []
        for pid, indices, times in raw:
            stamps = array("q")
            stamps.frombytes(times)
            samples = len(stamps) - _TAIL
            if samples < 1:
                continue
            took = [stamps[at + 1] - stamps[at] for at in range(samples)]
            longest = max(took)
            at = took.index(longest)
            slowest = str(indices[at])[:40] if samples == len(indices) and indices[at] is not None else ""
            worker = self._hands.setdefault(pid, len(self._hands)) if pid else -1
            kept = tuple(stamps[1 : samples + 1]) if self._settings.trace else ()
            self._made.append(
                Made(
                    worker, stamps[0], stamps[samples], stamps[-1], samples, longest, slowest, stamps[samples + 1], kept
                )
            )

    def facts(self) -> LoaderRun:
        """All of it."""
        self._count()
        seconds = {name: value / 1e9 for name, value in self._nanoseconds.items()}
        known: dict[str, Any] = {}
        made = list(self._made)
        if self.recorders:
            known = _from_recorders(self.recorders)
        else:
            known, made = self._from_pages()
        if self.failure is not None and not known.get("failures"):
            known["failures"] = (self.failure,)
        return LoaderRun(
            name=f"{self.kind} over {self.dataset}",
            place=self.place,
            workers=self.workers,
            batch_size=self.batch_size,
            persistent=self.persistent,
            driver="unjam" if self.recorders else "torch",
            note=self.note,
            epochs=self.epochs,
            batches=self.batches,
            loaders=max(self.loaders, 1),
            starts=tuple(one / 1e9 for one in self._starts),
            waited=seconds.get("waited", 0.0),
            trained=seconds.get("trained", 0.0),
            waits=tuple(self.waits),
            made=tuple(made),
            cut=self.batches > len(self.waits) or self.batches > len(made),
            **known,
        )

    def _from_pages(self) -> tuple[dict[str, Any], list[Made]]:
        """What torch's own workers wrote down."""
        totals: Counter[str] = Counter()
        made: list[Made] = []
        for seed in dict.fromkeys(self._seeds):
            for worker, path in pages.of_seed(self._settings.folder, seed):
                summed, its = pages.read(path, worker)
                made += pages.with_samples(its, path) if self._settings.trace else its
                totals.update(
                    samples=summed.samples, sampling=summed.fetching, collating=summed.collating, batches=summed.batches
                )
        known = {
            "samples": totals["samples"],
            "sampling": totals["sampling"] / 1e9,
            "collating": totals["collating"] / 1e9,
        }
        return known, sorted(made, key=lambda one: one.done)[-MOST_MADE:]


def _from_recorders(recorders: list[Any]) -> dict[str, Any]:
    causes: Counter[tuple[str, str]] = Counter()
    samples: dict[tuple[str, str], list[str]] = {}
    totals: Counter[str] = Counter()
    seconds = {"sampling": 0.0, "collating": 0.0, "packing": 0.0}
    incidents: Counter[str] = Counter()
    for recorder in recorders:
        done = recorder.statistics()
        totals.update(samples=done.samples, failed=done.failed, restarts=done.restarts)
        incidents.update(done.incidents)
        for name, stage in (("sampling", "getitem"), ("collating", "collate"), ("packing", "pickle")):
            seconds[name] += done.stages[stage].total
        for error in recorder.errors:
            key = (words_of(error.exception), error.decision)
            indices = error.indices or (error.index,)
            causes[key] += len(indices)
            samples.setdefault(key, []).extend(str(index) for index in indices)
    failures = tuple(
        Failure(words, count, ", ".join(dict.fromkeys(samples[words, decision][:5])), decision)
        for (words, decision), count in causes.most_common(10)
    )
    counted = {name: totals[name] for name in ("samples", "failed", "restarts")}
    return {**counted, **seconds, "failures": failures, "incidents": dict(incidents)}


def words_of(error: BaseException) -> str:
    """An exception in one line; of those that torch rebuilt from a worker, the worker's own last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if lines[0].startswith("Caught ") and len(lines) > 1:
        return lines[-1][:300]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines[0] else type(error).__name__


class Records:
    """Every loader of this process. A fork begins with none."""

    _here: Records | None = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.began = time.monotonic()
        self._places: weakref.WeakKeyDictionary[Any, Place | None] = weakref.WeakKeyDictionary()
        self._records: weakref.WeakKeyDictionary[Any, Record] = weakref.WeakKeyDictionary()
        self.all: list[Record] = []

    @classmethod
    def here(cls, settings: Settings) -> Records:
        """This process's own."""
        if cls._here is None:
            cls._here = Records(settings)
        return cls._here

    def made(self, loader: Any, frame: FrameType) -> None:
        """The program made a loader."""
        self._places.setdefault(loader, users_place(frame))

    def of(self, loader: Any) -> Record:
        """The record of a loader, from its first iterator on."""
        if self.pid != os.getpid():  # forked since: a rank, or a worker with a loader of its own
            from unjam.running import closing  # noqa: PLC0415 - rare

            places = self._places
            self.__init__(self.settings)  # type: ignore[misc] # begin anew, in place: the patches hold this object
            self._places = places
            closing.at_end_of_fork(self.settings)
        record = self._records.get(loader)
        if record is None:
            record = Record(loader, self._places.get(loader), self.settings)
            # a loader that is made anew at the same line is the same loader to its user
            same = next((one for one in self.all if one.place and one.key == record.key), None)
            record = self._records[loader] = same or record
            record.loaders += 1
            if same is None:
                self.all.append(record)
        return record
