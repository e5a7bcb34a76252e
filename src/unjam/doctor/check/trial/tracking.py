"""Records the samples that one process loads: start, duration, hash of the content, later changes."""

from __future__ import annotations

import contextlib
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unjam.deadlines import TRIAL_CHECK
from unjam.doctor.check.event_log import EventLog
from unjam.doctor.check.inventory import Inventory, walk
from unjam.doctor.check.processes import pause
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.trial import self_inspection
from unjam.doctor.check.trial.changes import release_own_locks
from unjam.doctor.check.trial.trial_resources import Server, note_error
from unjam.doctor.facts.digest import digest
from unjam.doctor.facts.sample_files import file_of
from unjam.doctor.facts.trial import Plan, WorkerMemory
from unjam.loader.failures.outlier import read as read_shape
from unjam.system.limits import private_dirty_bytes

MEMORY_EVERY = 0.2  # most seconds between two readings of a worker's memory
# also read after these numbers of samples: fast samples may fill the memory in less time
MEMORY_AT = frozenset({1, *(1 << power for power in range(3, 20))})
SLOWEST = 3
SLOW = 0.1  # seconds; the file of such a sample is recorded too
COLLATE_CHECKS = 3  # batches for which we check what random generators the collate function uses
MOST_LOADED_TWICE = 6  # load this many samples twice, to check whether an index always returns the same sample


# handlers that hide errors: file, first and last line of try, line of handler, what it does
HidingHandlers = tuple[tuple[str, int, int, int, str], ...]


@dataclass
class TrialSetup:
    """What a process of a trial needs to know. It is pickled for workers that are not forked."""

    folder: str
    plan: Plan
    epoch: int = 0
    first: bool = False  # the first trial: shared memory is still unchanged
    handlers: HidingHandlers = ()
    servers: tuple[Server, ...] = ()  # of the program


@dataclass
class ProcessState:
    """The state of a trial in this process."""

    setup: TrialSetup
    recorder: EventLog
    randomness: Randomness
    inventory: Inventory
    fetchers: int = 0
    samples: int = 0
    first_indices: list[Any] = field(default_factory=list)  # indices to load twice
    collated: int = 0  # batches
    # also loaded twice, to check whether only the first time is slow
    slowest: list[tuple[float, str]] = field(default_factory=list)
    memory_read_at: float = 0.0
    shapes: set[str] = field(default_factory=set)
    good_sample: Any = None
    batches: int = 0
    last_batch: tuple[Any, str] | None = None  # the previous batch and its hash
    roots: dict[str, Any] = field(default_factory=dict)
    batch_samples: list[tuple[str, Any, str]] = field(default_factory=list)  # samples of the current batch


def epoch_of(process: ProcessState) -> int:
    """The number of the current epoch of the trial."""
    return process.setup.epoch + (process.fetchers - 1 if process.recorder.worker >= 0 else 0)


SKIPPED = object()


def load_sample(process: ProcessState, index: str, load: Callable[[], Any]) -> Any:
    """Load one sample, and record what can be observed of it."""
    plan, recorder = process.setup.plan, process.recorder
    recorder.write("start", i=index)
    iterable = index.startswith("#")
    # don't seed a worker's first sample: it may create generators from torch's seed of the worker
    unseeded = process.samples == 0 and process.recorder.worker >= 0 and process.fetchers <= 1
    before: dict[str, str] = {}
    if not plan.measured:
        if not unseeded:
            process.randomness.seed(seed_number(f"{index}/{epoch_of(process)}" if iterable else index))
        before = process.randomness.states() if process.samples < 3 else {}
    swallowed: list[str] = []
    began, used = time.perf_counter(), time.process_time()
    try:
        with _tracing(process, swallowed):
            sample = load()
    except BaseException as error:
        if iterable and isinstance(error, StopIteration):
            recorder.write("over")
            raise
        if not plan.in_place:
            note_error(process.setup.folder, error, in_worker=bool(plan.workers))
        recorder.raised(error, "sample", index)
        if plan.tolerant and isinstance(error, (Exception, SystemExit)):
            # use a good sample instead, so that the batch keeps its size
            return process.good_sample if process.good_sample is not None else SKIPPED
        raise
    seconds, used = time.perf_counter() - began, time.process_time() - used
    process.samples += 1
    process.slowest = sorted([*process.slowest, (seconds, index)], reverse=True)[:SLOWEST]
    fields: dict[str, Any] = {
        "i": index,
        "s": round(seconds, 6),
        "u": round(used, 6),
        "e": epoch_of(process),
        "f": file_of(process.roots.get("dataset"), index) if seconds > SLOW else "",
    }
    if not plan.measured:
        fields["d"], fields["l"] = digest(sample)
        process.batch_samples.append((index, sample, fields["d"]))
        if before:
            after = process.randomness.states()
            fields["drew"] = [name for name in after if after[name] != before.get(name)]
        if unseeded:
            fields["n"] = True  # not to be compared
        shape = _shape(sample)
        if shape not in process.shapes and len(process.shapes) < 20:
            process.shapes.add(shape)
            fields["shape"] = shape
        if sample is None:
            fields["none"] = True
        if swallowed:
            fields["swallowed"] = swallowed[0]
    recorder.write("done", **fields)
    _record_memory(process)
    _after_first(process)
    release_own_locks(plan, process.inventory)
    if sample is not None and plan.tolerant:
        process.good_sample = sample
    return sample


def _after_first(process: ProcessState) -> None:
    """Record the generators that the first sample created: several workers may have given them the same seed."""
    if process.samples != 1 or process.recorder.worker < 0 or process.setup.plan.measured or process.fetchers > 1:
        return
    known = process.inventory.generators()
    process.inventory = Inventory(process.roots)
    self_inspection.object_names = process.inventory.names
    own = process.inventory.generators()
    process.randomness = Randomness(own)
    # created or replaced by the first sample
    late = {name: state for name, state in process.randomness.states().items() if own.get(name) is not known.get(name)}
    if late:
        process.recorder.write("states", epoch=epoch_of(process), states=late)


def seed_number(index: str) -> int:
    """A seed made from a name."""
    return zlib.crc32(index.encode())


def _shape(sample: Any) -> str:
    tree = read_shape(sample)
    return "; ".join(f"{where or 'sample'}: {has}" for where, has in list(tree.items())[:12])


def record_changed_samples(process: ProcessState, samples: list[Any]) -> None:
    """Record samples that changed after they were returned: later samples reused their buffer."""
    fresh, process.batch_samples = process.batch_samples, []
    if process.setup.plan.measured or len(samples) < 2 or process.samples > 400:
        return
    changed = [index for index, sample, name in fresh if digest(sample)[0] != name]
    if changed:
        process.recorder.write("changed", i=changed, alias=_alias(process, fresh[-1][1]))


def _alias(process: ProcessState, sample: Any) -> str:
    """The path of the attribute that shares memory with a sample."""
    own = set(_addresses(sample))
    for found in walk(process.roots):
        if found.path not in process.roots and (_address(found.value) in own or found.value is sample):
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


def load_twice(process: ProcessState, dataset: Any) -> None:
    """Load the first indices again in another order: does an index determine its sample?

    This runs last because it advances a dataset that reads sequentially.
    """
    slow = [int(index) for _, index in process.slowest if index.isdecimal() and int(index) not in process.first_indices]
    for index in [*slow, *reversed(process.first_indices)]:
        process.recorder.write("start", i=str(index))
        process.randomness.seed(seed_number(str(index)))
        began = time.perf_counter()
        try:
            second = digest(dataset[index])[0]
        except Exception:  # noqa: BLE001 - then the index does not determine it
            second = "failed"
        process.recorder.write("twice", i=str(index), d=second, s=round(time.perf_counter() - began, 6))


def collate(process: ProcessState, function: Callable[[Any], Any], samples: Any) -> Any:
    """Collate a batch as the program does, and record it."""
    if samples is SKIPPED:
        raise RuntimeError("the sample was skipped")
    if process.setup.plan.tolerant and isinstance(samples, list) and not samples:
        return []  # every sample of the batch failed
    process.recorder.write("collate")
    if process.setup.plan.tolerant and isinstance(samples, list) and any(s is None for s in samples):
        kept = [s for s in samples if s is not None] or [process.good_sample]
        samples = [s if s is not None else kept[0] for s in samples]
    checked = process.collated < COLLATE_CHECKS and not process.setup.plan.measured
    process.collated += 1
    states = process.randomness.states() if checked else {}
    try:
        batch = function(samples)
    except BaseException as error:
        process.recorder.raised(error, "collate")
        raise
    now = process.randomness.states() if checked else {}
    drew = [name for name in now if now[name] != states.get(name)]
    process.recorder.write("collated", **({"drew": drew} if drew else {}))
    _check_last_batch(process, batch)
    return batch


def _has_changed(batch: Any, before: str) -> bool:
    """Whether a batch has changed. While a queue moves it into shared memory it may seem so for a moment."""
    if digest(batch)[0] == before:
        return False
    pause(TRIAL_CHECK.seconds)
    return digest(batch)[0] != before


def _check_last_batch(process: ProcessState, batch: Any) -> None:
    """Record whether the previous batch has changed: then the collate function, or a sample, reuses its memory."""
    last = process.last_batch
    if process.setup.plan.measured or process.batches > 60:
        process.last_batch = None
        return
    process.batches += 1
    if last is not None and last[0] is not batch and _has_changed(*last):
        process.recorder.write("overwritten", alias=_alias(process, last[0]))
    process.last_batch = (batch, digest(batch)[0])


@contextlib.contextmanager
def _tracing(process: ProcessState, swallowed: list[str]) -> Iterator[None]:
    """Record exceptions that a known handler hides.

    Tracing is slow: it runs only if the source has such handlers, and only for the first samples.
    """
    handlers = process.setup.handlers
    if not handlers or process.samples > 3000 or process.setup.plan.measured or process.setup.plan.workers:
        yield
        return
    files = {file for file, *_ in handlers}

    def each(frame: Any, event: str, given: Any) -> Any:
        if event == "exception":
            for file, first, last, at, done in handlers:
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


def _record_memory(process: ProcessState) -> None:
    now = time.monotonic()
    if process.recorder.worker < 0 or (
        now - process.memory_read_at < MEMORY_EVERY and process.samples not in MEMORY_AT
    ):
        return
    process.memory_read_at = now
    if private := private_dirty_bytes():
        process.recorder.record(WorkerMemory(process.recorder.worker, process.samples, private, now))
