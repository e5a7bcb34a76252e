"""Records the samples of one process: start, time, digest of the content, later changes."""

from __future__ import annotations

import contextlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unjam.deadlines import WATCH_TRIAL
from unjam.doctor.check.inventory import Inventory, walk
from unjam.doctor.check.processes import pause
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.changes import release_mine
from unjam.doctor.check.trial.event_log import EventLog
from unjam.doctor.check.trial.exception_words import described
from unjam.doctor.check.trial.looks import Looks
from unjam.doctor.check.trial.program_world import Server, note_error
from unjam.doctor.facts.digest import digest
from unjam.doctor.facts.trial import Plan
from unjam.loader.outlier import read as read_shape

MEMORY_EVERY = 0.2  # most seconds between two readings of a worker's memory
# the numbers of samples after which it is read in any case: fast samples may fill it within that time
MEMORY_AT = frozenset({1, *(1 << power for power in range(3, 20))})
SLOWEST = 3
LOOKED_AT = 3  # batches whose collate function is asked what it draws from
AGAIN = 6  # load so many samples twice, to see whether an index always gives the same sample


@dataclass
class Setup:
    """What a process of a trial needs to know. It is pickled for workers that are not forked."""

    folder: str
    plan: Plan
    epoch: int = 0
    first: bool = False  # the first trial: shared memory is still unchanged
    # handlers that hide errors: file, first and last line of try, line of handler, what it does
    tries: tuple[tuple[str, int, int, int, str], ...] = ()
    servers: tuple[Server, ...] = ()  # of the program


@dataclass
class Here:
    """The state of a trial in this process."""

    setup: Setup
    recorder: EventLog
    randomness: Randomness
    inventory: Inventory
    fetchers: int = 0
    samples: int = 0
    firsts: list[Any] = field(default_factory=list)  # indices to load twice
    collated: int = 0  # batches
    slowest: list[tuple[float, str]] = field(
        default_factory=list
    )  # those too: is it the sample that is slow, or its first time?
    weighed: float = 0.0
    shapes: set[str] = field(default_factory=set)
    good: Any = None
    batches: int = 0
    last_batch: tuple[Any, str] | None = None  # the batch before and its hash
    roots: dict[str, Any] = field(default_factory=dict)
    fresh: list[tuple[str, Any, str]] = field(default_factory=list)  # samples of the current batch
    looks: Looks | None = None


def epoch_of(here: Here) -> int:
    """The number of the current epoch of the trial."""
    return here.setup.epoch + (here.fetchers - 1 if here.recorder.worker >= 0 else 0)


LEFT_OUT = object()


def sample_of(here: Here, index: str, load: Callable[[], Any]) -> Any:
    """Load one sample, and record all that we can see of it."""
    plan, recorder = here.setup.plan, here.recorder
    recorder.write("start", i=index)
    iterable = index.startswith("#")
    # don't seed a worker's first sample: it may create generators from torch's seed of the worker
    natural = here.samples == 0 and here.recorder.worker >= 0 and here.fetchers <= 1
    before: dict[str, str] = {}
    if not plan.measured:
        if not natural:
            here.randomness.seed(seed_number(f"{index}/{epoch_of(here)}" if iterable else index))
        before = here.randomness.states() if here.samples < 3 else {}
    swallowed: list[str] = []
    began, used = time.perf_counter(), time.process_time()
    try:
        with _tracing(here, swallowed):
            sample = load()
    except BaseException as error:
        if iterable and isinstance(error, StopIteration):
            recorder.write("over")
            raise
        if not plan.in_place:
            note_error(here.setup.folder, error, in_worker=bool(plan.workers))
        recorder.write("raised", stage="sample", i=index, s=time.perf_counter() - began, **described(error))
        if plan.tolerant and isinstance(error, (Exception, SystemExit)):
            # use a good sample instead, so that the batch keeps its size
            return here.good if here.good is not None else LEFT_OUT
        raise
    seconds, used = time.perf_counter() - began, time.process_time() - used
    here.samples += 1
    here.slowest = sorted([*here.slowest, (seconds, index)], reverse=True)[:SLOWEST]
    fields: dict[str, Any] = {"i": index, "s": round(seconds, 6), "u": round(used, 6), "e": epoch_of(here)}
    if not plan.measured:
        fields["d"], fields["l"] = digest(sample)
        here.fresh.append((index, sample, fields["d"]))
        if before:
            after = here.randomness.states()
            fields["drew"] = [name for name in after if after[name] != before.get(name)]
        if natural:
            fields["n"] = True  # don't compare it
        shape = _shape(sample)
        if shape not in here.shapes and len(here.shapes) < 20:
            here.shapes.add(shape)
            fields["shape"] = shape
        if sample is None:
            fields["none"] = True
        if swallowed:
            fields["swallowed"] = swallowed[0]
    recorder.write("done", **fields)
    _record_memory(here)
    _after_first(here)
    release_mine(plan, here.inventory)
    if sample is not None and plan.tolerant:
        here.good = sample
    return sample


def _after_first(here: Here) -> None:
    """Record the generators that the first sample created; workers may have seeded them equally."""
    if here.samples != 1 or here.recorder.worker < 0 or here.setup.plan.measured or here.fetchers > 1:
        return
    known = here.inventory.generators()
    here.inventory = Inventory(here.roots)
    self_inspection.names = here.inventory.names
    own = here.inventory.generators()
    here.randomness = Randomness(own)
    # created or replaced by the first sample
    late = {name: state for name, state in here.randomness.states().items() if own.get(name) is not known.get(name)}
    if late:
        here.recorder.write("states", epoch=epoch_of(here), states=late)


def seed_number(index: str) -> int:
    """A seed made from a name."""
    return zlib.crc32(index.encode())


def listed(wanted: Any) -> str:
    """The name of a batch that is loaded with one call: its first indices."""
    return ",".join(str(index) for index in list(wanted)[:8])


def _shape(sample: Any) -> str:
    tree = read_shape(sample)
    return "; ".join(f"{where or 'sample'}: {has}" for where, has in list(tree.items())[:12])


def look_again(here: Here, samples: list[Any]) -> None:
    """Record samples that changed after they were returned: later samples reused their buffer."""
    fresh, here.fresh = here.fresh, []
    if here.setup.plan.measured or len(samples) < 2 or here.samples > 400:
        return
    changed = [index for index, sample, name in fresh if digest(sample)[0] != name]
    if changed:
        here.recorder.write("changed", i=changed, alias=_alias(here, fresh[-1][1]))


def _alias(here: Here, sample: Any) -> str:
    """The path of the attribute that shares memory with a sample."""
    own = set(_addresses(sample))
    for found in walk(here.roots):
        if found.path not in here.roots and (_address(found.obj) in own or found.obj is sample):
            return found.path
    return ""


def _addresses(part: Any, depth: int = 0) -> Iterator[int]:
    if isinstance(part, dict):
        part = list(part.values())
    if isinstance(part, (list, tuple)) and depth < 4:
        for one in part[:50]:
            yield from _addresses(one, depth + 1)
    elif where := _address(part):
        yield where


def _address(obj: Any) -> int:
    if callable(getattr(obj, "data_ptr", None)):
        return int(obj.data_ptr())
    interface = getattr(obj, "__array_interface__", None)
    return int(interface["data"][0]) if interface else 0


def load_again(here: Here, dataset: Any) -> None:
    """Load the first indices again in another order: does an index determine its sample?

    This comes last because it moves on a dataset that reads sequentially.
    """
    slow = [int(index) for _, index in here.slowest if index.isdecimal() and int(index) not in here.firsts]
    for index in [*slow, *reversed(here.firsts)]:
        here.recorder.write("start", i=str(index))
        here.randomness.seed(seed_number(str(index)))
        began = time.perf_counter()
        try:
            second = digest(dataset[index])[0]
        except Exception:  # noqa: BLE001 - then it does not
            second = "failed"
        here.recorder.write("twice", i=str(index), d=second, s=round(time.perf_counter() - began, 6))


def collate(here: Here, function: Callable[[Any], Any], samples: Any) -> Any:
    """Collate a batch like the program does, and record it."""
    if samples is LEFT_OUT:
        raise RuntimeError("the sample was left out")
    if here.setup.plan.tolerant and isinstance(samples, list) and not samples:
        return []  # every sample of the batch failed
    here.recorder.write("collate")
    began = time.perf_counter()
    if here.setup.plan.tolerant and isinstance(samples, list) and any(s is None for s in samples):
        kept = [s for s in samples if s is not None] or [here.good]
        samples = [s if s is not None else kept[0] for s in samples]
    looked = here.collated < LOOKED_AT and not here.setup.plan.measured
    here.collated += 1
    states = here.randomness.states() if looked else {}
    try:
        batch = function(samples)
    except BaseException as error:
        here.recorder.write("raised", stage="collate", **described(error))
        raise
    seconds = time.perf_counter() - began
    now = here.randomness.states() if looked else {}
    drew = [name for name in now if now[name] != states.get(name)]
    here.recorder.write("collated", s=round(seconds, 6), **({"drew": drew} if drew else {}))
    _look_at_last_batch(here, batch)
    return batch


def _has_changed(batch: Any, before: str) -> bool:
    """Whether a batch has another content for good: while a worker's queue moves it into shared memory, it may look so."""
    if digest(batch)[0] == before:
        return False
    pause(WATCH_TRIAL.seconds)
    return digest(batch)[0] != before


def _look_at_last_batch(here: Here, batch: Any) -> None:
    """Record if the batch before has changed: the collate function, or a sample, reuses its memory."""
    last = here.last_batch
    if here.setup.plan.measured or here.batches > 60:
        here.last_batch = None
        return
    here.batches += 1
    if last is not None and last[0] is not batch and _has_changed(*last):
        here.recorder.write("overwritten", alias=_alias(here, last[0]))
    here.last_batch = (batch, digest(batch)[0])


@contextlib.contextmanager
def _tracing(here: Here, swallowed: list[str]) -> Iterator[None]:
    """Record exceptions that a known handler hides.

    Tracing is slow: it runs only if the source has such handlers, and only for the first samples.
    """
    tries = here.setup.tries
    if not tries or here.samples > 3000 or here.setup.plan.measured or here.setup.plan.workers:
        yield
        return
    files = {file for file, *_ in tries}

    def each(frame: Any, event: str, given: Any) -> Any:
        if event == "exception":
            for file, first, last, at, done in tries:
                if frame.f_code.co_filename == file and first <= frame.f_lineno <= last and not swallowed:
                    kind, value = given[0], given[1]
                    swallowed.append(f"{kind.__qualname__}: {str(value)[:100]}|{file}|{frame.f_lineno}|{at}|{done}")
        return each

    def calls(frame: Any, _: str, __: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_lines = False
        return each

    old = sys.gettrace()
    sys.settrace(calls)
    try:
        yield
    finally:
        sys.settrace(old)


def _record_memory(here: Here) -> None:
    now = time.monotonic()
    if here.recorder.worker < 0 or (now - here.weighed < MEMORY_EVERY and here.samples not in MEMORY_AT):
        return
    here.weighed = now
    found = {}
    try:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("Rss", "Pss", "Private_Dirty"):
                    found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return
    here.recorder.write(
        "memory",
        n=here.samples,
        private=found.get("Private_Dirty", 0),
        pss=found.get("Pss", 0),
        rss=found.get("Rss", 0),
    )
