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
import pickle
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unjam.doctor import looking
from unjam.doctor.changes import ease_worker, release_mine
from unjam.doctor.digest import digest
from unjam.doctor.inventory import Inventory, walk
from unjam.doctor.randomness import Randomness
from unjam.doctor.recording import Recorder
from unjam.evidence.case import Plan, is_users
from unjam.evidence.oddness import read as read_shape

MEMORY_EVERY = 0.2  # seconds between two readings of a worker's memory
AGAIN = 6  # samples that are loaded twice, to see whether the same index gives the same sample


@dataclass
class Setup:
    """What a process of a trial must know. It travels to workers that are not forked."""

    folder: str
    plan: Plan
    epoch: int = 0
    tries: tuple[tuple[str, int, int, int, str], ...] = ()  # handlers that swallow: file, first, last, at, what is done


@dataclass
class _Here:
    """This process's own side of a trial."""

    setup: Setup
    recorder: Recorder
    randomness: Randomness
    inventory: Inventory
    fetchers: int = 0
    samples: int = 0
    again: int = 0
    weighed: float = 0.0
    shapes: set[str] = field(default_factory=set)
    good: Any = None
    roots: dict[str, Any] = field(default_factory=dict)
    fresh: list[tuple[str, Any, str]] = field(default_factory=list)  # samples of the batch that is being made


_setup: Setup | None = None
_here: _Here | None = None


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
            kind._unjam = True  # type: ignore[attr-defined]  # noqa: SLF001


@dataclass
class Hello:
    """Stands before the program's own worker_init_fn."""

    setup: Setup
    inner: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
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


def _arrive(worker: int, fetcher: Any) -> _Here:
    """The first thing in a process: open its file, arm the signals."""
    global _here  # noqa: PLW0603 - as above
    assert _setup is not None
    if _here is None or _here.recorder.pid != os.getpid():
        recorder = Recorder(_setup.folder, worker)
        arm(_setup.folder)
        _here = _Here(_setup, recorder, Randomness({}), Inventory({}))
    if fetcher is not None:
        _here.roots = {"dataset": fetcher.dataset, "collate_fn": fetcher.collate_fn}
        _here.inventory = Inventory(_here.roots)
        _here.randomness = Randomness(_here.inventory.generators())
        looking.names = _here.inventory.names
    return _here


def arm(folder: str) -> None:
    """Stacks on a signal and at a crash, without anybody's permission."""
    file = open(f"{folder}/{os.getpid()}.stack", "w", encoding="utf-8")  # noqa: PTH123 - stays open with the process
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(looking.STACK, file=file, all_threads=True, chain=False)
    with contextlib.suppress(ValueError):  # not in the main thread: the stack alone must do
        signal.signal(looking.LOOK, functools.partial(looking.look, folder))


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
    if here.setup.plan.reseed:
        here.randomness.seed_own(_number(f"{here.setup.epoch + here.fetchers}/{worker}"))
    if here.fetchers == 1:  # later ones of a worker that persists have seen our seeds
        here.recorder.write("states", epoch=_epoch(here), states=here.randomness.states())


def _worker() -> int:
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - as above

    info = get_worker_info()
    return info.id if info is not None else -1


def _epoch(here: _Here) -> int:
    return here.setup.epoch + (here.fetchers - 1 if here.recorder.worker >= 0 else 0)


def _fetch_map(self: Any, wanted: Any) -> Any:
    here = _arrive(_worker(), None)
    here.fresh = []
    if not self.auto_collation:
        return _collate(here, self.collate_fn, _sample(here, str(wanted), lambda: self.dataset[wanted]))
    whole = getattr(self.dataset, "__getitems__", None)
    if whole and not type(self.dataset).__module__.startswith("torch.utils.data"):
        samples = list(_sample(here, _listed(wanted), lambda: whole(wanted)))
    else:
        samples = []
        for index in wanted:
            sample = _sample(here, str(index), functools.partial(self.dataset.__getitem__, index))
            if sample is not _LEFT_OUT:
                samples.append(sample)
        _look_again(here, samples)
        if here.setup.plan.tolerant and not here.setup.plan.workers and here.again < AGAIN:
            _load_again(here, self.dataset, wanted)
    return _collate(here, self.collate_fn, samples)


def _fetch_iterable(self: Any, wanted: Any) -> Any:
    here = _arrive(_worker(), None)
    here.fresh = []
    if self.ended:
        raise StopIteration
    if not self.auto_collation:
        return _collate(here, self.collate_fn, _sample(here, f"#{here.samples}", lambda: next(self.dataset_iter)))
    samples: list[Any] = []
    for _ in wanted:
        try:
            sample = _sample(here, f"#{here.samples}", lambda: next(self.dataset_iter))
        except StopIteration:
            self.ended = True
            break
        if sample is not _LEFT_OUT:
            samples.append(sample)
    _look_again(here, samples)
    if not samples or (self.drop_last and len(samples) < len(wanted)):
        if samples:
            here.recorder.write("dropped", count=len(samples))
        raise StopIteration
    return _collate(here, self.collate_fn, samples)


_LEFT_OUT = object()


def _sample(here: _Here, index: str, load: Callable[[], Any]) -> Any:
    plan, recorder = here.setup.plan, here.recorder
    recorder.write("start", i=index)
    iterable = index.startswith("#")
    if not plan.measured:
        if iterable:
            here.randomness.seed(_number(f"{index}/{_epoch(here)}"))
        else:
            here.randomness.seed(_number(index))
        before = here.randomness.states() if here.samples < 3 else {}
    swallowed: list[str] = []
    began = time.perf_counter()
    try:
        with _tracing(here, swallowed):
            sample = load()
    except BaseException as error:
        if iterable and isinstance(error, StopIteration):
            recorder.write("over")
            raise
        recorder.write("raised", stage="sample", i=index, s=time.perf_counter() - began, **described(error))
        if plan.tolerant and isinstance(error, Exception):
            # one that was good stands in, so that the batch keeps its size
            return here.good if here.good is not None else _LEFT_OUT
        raise
    seconds = time.perf_counter() - began
    here.samples += 1
    fields: dict[str, Any] = {"i": index, "s": round(seconds, 6), "e": _epoch(here)}
    if not plan.measured:
        fields["d"], fields["l"] = digest(sample)
        here.fresh.append((index, sample, fields["d"]))
        if before:
            after = here.randomness.states()
            fields["drew"] = [name for name in after if after[name] != before.get(name)]
        shape = _shape(sample)
        if shape not in here.shapes and len(here.shapes) < 20:
            here.shapes.add(shape)
            fields["shape"] = shape
        if sample is None:
            fields["none"] = True
        if swallowed:
            fields["swallowed"] = swallowed[0]
    recorder.write("done", **fields)
    _weigh_myself(here)
    _after_first(here)
    release_mine(plan, here.inventory)
    if sample is not None and plan.tolerant:
        here.good = sample
    return sample


def _after_first(here: _Here) -> None:
    """Generators that the first sample made: two workers that make them alike draw alike."""
    if here.samples != 1 or here.recorder.worker < 0 or here.setup.plan.measured or here.fetchers > 1:
        return
    known = set(here.randomness.states())
    here.inventory = Inventory(here.roots)
    looking.names = here.inventory.names
    here.randomness = Randomness(here.inventory.generators())
    late = {name: state for name, state in here.randomness.states().items() if name not in known}
    if late:
        here.recorder.write("states", epoch=_epoch(here), states=late)


def _number(index: str) -> int:
    return zlib.crc32(index.encode())


def _listed(wanted: Any) -> str:
    return ",".join(str(index) for index in list(wanted)[:8])


def _shape(sample: Any) -> str:
    tree = read_shape(sample)
    return "; ".join(f"{where or 'sample'}: {has}" for where, has in list(tree.items())[:12])


def _look_again(here: _Here, samples: list[Any]) -> None:
    """Whether a sample changed after it was returned: a buffer that the next sample was written into."""
    fresh, here.fresh = here.fresh, []
    if here.setup.plan.measured or len(samples) < 2 or here.samples > 400:
        return
    changed = [index for index, sample, name in fresh if digest(sample)[0] != name]
    if changed:
        here.recorder.write("changed", i=changed, alias=_alias(here, fresh[-1][1]))


def _alias(here: _Here, sample: Any) -> str:
    """The attribute whose memory a sample lies in."""
    own = {where for part in (sample if isinstance(sample, (list, tuple)) else [sample]) if (where := _address(part))}
    for found in walk(here.roots):
        if found.path not in here.roots and (_address(found.obj) in own or found.obj is sample):
            return found.path
    return ""


def _address(obj: Any) -> int:
    if callable(getattr(obj, "data_ptr", None)):
        return int(obj.data_ptr())
    interface = getattr(obj, "__array_interface__", None)
    return int(interface["data"][0]) if interface else 0


def _load_again(here: _Here, dataset: Any, wanted: Any) -> None:
    """The same indices once more in another order: equal samples mean that an index determines its sample."""
    for index in reversed(list(wanted)[:2]):
        here.again += 1
        here.randomness.seed(_number(str(index)))
        try:
            second = digest(dataset[index])[0]
        except Exception:  # noqa: BLE001 - known from the first time
            continue
        here.recorder.write("twice", i=str(index), d=second)


def _collate(here: _Here, collate: Callable[[Any], Any], samples: Any) -> Any:
    if samples is _LEFT_OUT:
        raise RuntimeError("the sample was left out")
    here.recorder.write("collate")
    began = time.perf_counter()
    if here.setup.plan.tolerant and isinstance(samples, list) and any(s is None for s in samples):
        kept = [s for s in samples if s is not None] or [here.good]
        samples = [s if s is not None else kept[0] for s in samples]
    try:
        batch = collate(samples)
    except BaseException as error:
        here.recorder.write("raised", stage="collate", **described(error))
        raise
    here.recorder.write("collated", s=round(time.perf_counter() - began, 6))
    return batch


def described(error: BaseException) -> dict[str, Any]:
    """An exception in words that survive the process."""
    trace = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in trace if is_users(frame.filename)]
    last = users[-1] if users else None
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - exceptions with an odd __str__
        message = ""
    return {
        "type": type(error).__qualname__,
        "message": message[:2000],
        "trace": text[-4000:],
        "file": last.filename if last else "",
        "line": last.lineno if last else 0,
        "crosses": _crosses(error),
    }


def _crosses(error: BaseException) -> str:
    """Why torch could not send an exception: it sends the class and the text."""
    from torch._utils import ExceptionWrapper  # noqa: PLC0415 - as above

    try:
        wrapped = ExceptionWrapper((type(error), error, error.__traceback__))  # type: ignore[arg-type]
        pickle.loads(pickle.dumps(wrapped))
    except Exception as problem:  # noqa: BLE001 - whatever pickling raises is the answer
        return f"{type(problem).__name__}: {problem}"
    return ""


@contextlib.contextmanager
def _tracing(here: _Here, swallowed: list[str]) -> Iterator[None]:
    """Notice exceptions that a known handler hides. Only where the source has such handlers, and not for ever."""
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


def _weigh_myself(here: _Here) -> None:
    now = time.monotonic()
    if here.recorder.worker < 0 or (now - here.weighed < MEMORY_EVERY and here.samples != 1):
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
        "memory", n=here.samples, private=found.get("Private_Dirty", 0), pss=found.get("Pss", 0), rss=found.get("Rss", 0)
    )
