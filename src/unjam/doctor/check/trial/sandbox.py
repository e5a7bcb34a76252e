"""Runs one trial: in a fork of the program, in a new interpreter, or in the program itself."""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing.process
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from unjam.deadlines import PREFETCH_DONE
from unjam.doctor.check import resource_usage
from unjam.doctor.check.cleanup_process import record_session
from unjam.doctor.check.event_log import EventLog, progress
from unjam.doctor.check.inventory import Inventory, contents, open_files, walk
from unjam.doctor.check.trial import instrument, self_inspection, shared_memory
from unjam.doctor.check.trial.changes import apply_changes, reopen_privately
from unjam.doctor.check.trial.instrument import WorkerInit
from unjam.doctor.check.trial.line_sampler import LineSampler
from unjam.doctor.check.trial.tracking import TrialSetup
from unjam.doctor.facts.digest import digest, weigh
from unjam.doctor.facts.trial import Batch, DatasetChanges, Plan, UnsendablePart

EXIT_OK = 0
UNJAM = "unjam"  # stands for the start method of unjam's loader, if the program does not choose another
captured_offsets: dict[int, int] = {}  # offsets of the program's open files at the capture
captured_memory: list[shared_memory.SharedRegion] = []  # contents of its shared memory at the capture
IDLE_STEP = 0.02


def confine(folder: str) -> None:
    """Isolate this process: own session, output to the folder, no core files.

    If memory runs out, the kernel kills it before other processes.
    """
    os.setsid()
    record_session(os.path.dirname(folder), os.getpid())  # the doctor may be killed before it records this session
    out = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (out, 1), (out, 2)):
        os.dup2(old, new)
    for stream, fd in (("stdout", 1), ("stderr", 2)):
        # in notebooks and tests these streams don't write to 1 and 2
        setattr(sys, stream, io.TextIOWrapper(os.fdopen(os.dup(fd), "wb", 0), write_through=True, errors="replace"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _own_temporary_folder(folder)
    server = sys.modules.get("multiprocessing.forkserver")
    if server is not None:
        vars(server._forkserver).update(vars(server.ForkServer()))  # noqa: SLF001 - not our child
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # its thread pool did not survive the fork
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("900")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _own_temporary_folder(folder: str) -> None:
    """Give multiprocessing a folder of its own for sockets, and record it for the cleanup."""
    with contextlib.suppress(OSError):
        path = tempfile.mkdtemp(prefix="pymp-")
        multiprocessing.process.current_process()._config["tempdir"] = path  # type: ignore[attr-defined]  # noqa: SLF001
        with open(f"{folder}/temporary", "w", encoding="utf-8") as file:
            file.write(path)


def run_trial(loader: Any, setup: TrialSetup, roots: dict[str, Any]) -> None:
    """Iterate the loader under a plan, and record what happens."""
    plan = setup.plan
    instrument.install(setup)
    recorder = EventLog(setup.folder, -1)
    instrument.write_stacks_on_signals(setup.folder)
    if not plan.in_place:
        for fd, offset in captured_offsets.items():
            reopen_privately(fd, offset)  # earlier trials may have moved its offset
        if not setup.first:
            shared_memory.replace_regions(captured_memory)
    inventory = Inventory(roots)
    self_inspection.object_names = inventory.names
    refused = apply_changes(plan, inventory)
    if refused:
        recorder.write("refused", note=refused)
        return
    _set_options(loader, plan)
    if not plan.workers and not plan.in_place:
        from unjam.loader.worker.thread_limits import cap_threads  # noqa: PLC0415 - imports torch

        cap_threads(1, loaded_elsewhere=True, forked=True)  # as in confine(), for all libraries
    kept: list[Any] = []
    sampler = LineSampler(setup.folder) if (plan.is_plain or not plan.workers) and not plan.in_place else None
    offsets = file_offsets()
    until = time.monotonic() + plan.seconds
    state, over_time = _attributes(loader.dataset), [contents(roots)]
    sizes_then = {path: size for path, (size, _) in over_time[0].items()}
    init = loader.worker_init_fn
    try:
        for epoch in range(plan.epochs):
            setup.epoch = epoch
            if plan.workers:
                loader.worker_init_fn = WorkerInit(setup, init)
            if not _epoch(loader, epoch, plan, recorder, until, kept, lambda: over_time.append(contents(roots))):
                break
    except BaseException as error:  # noqa: BLE001 - any error is a result
        recorder.raised(error, "consumer")
        recorder.write("codes", codes=_exit_codes())
    else:
        recorder.write("finished")
    if plan.tolerant and not plan.workers and not plan.in_place:
        instrument.load_again(loader.dataset)
    if sampler is not None:
        sampler.end()
    moved = [(fd, open_files().get(fd, "")) for fd, offset in offsets.items() if _offset(fd) != offset]
    recorder.write("moved", files=moved)
    after = _attributes(loader.dataset)
    recorder.record(
        DatasetChanges(
            changed=tuple(name for name in after if after[name] != state.get(name)),
            grown=tuple(path for path, (size, _) in contents(roots).items() if size > sizes_then.get(path, size)),
            bounded=_bounded(over_time),
            kept=resource_usage.added_items(sizes_then, ((found.path, found.value) for found in walk(roots))),
        )
    )
    shut_down_workers(getattr(loader, "_iterator", None))
    recorder.write("completed")


def is_unjams(loader: Any) -> bool:
    """Whether a loader is unjam's, or of a class derived from it."""
    return any(kind.__module__ == "unjam.loader.dataloader" for kind in type(loader).__mro__)


def _set_options(loader: Any, plan: Plan) -> None:
    """Set the loader's options as planned. We may change it: this process only runs the trial."""
    values = vars(loader)
    values["num_workers"] = plan.workers
    values["_iterator"] = None
    if not plan.in_place:
        values["pin_memory"] = False  # accelerators don't survive a fork
    if plan.workers == 0:
        values["persistent_workers"] = False
        values["prefetch_factor"] = None
        values["timeout"] = 0
        values["_DataLoader__multiprocessing_context"] = None
    else:
        values["prefetch_factor"] = plan.prefetch or values.get("prefetch_factor") or 2
        if plan.start and plan.start != UNJAM:
            values["_DataLoader__multiprocessing_context"] = multiprocessing.get_context(plan.start)
    if plan.persistent and plan.workers:
        values["persistent_workers"] = True
    if plan.tolerant and is_unjams(loader):
        values["on_error"] = "skip"
    if plan.whole:
        values["drop_last"] = False
        if hasattr(values.get("batch_sampler"), "drop_last"):
            values["batch_sampler"].drop_last = False


FEWEST_SIZES = 4


def _bounded(over_time: list[dict[str, tuple[int, int]]]) -> tuple[str, ...]:
    """The containers that grew, then kept their length while their items continued to change: they have a limit."""
    if len(over_time) <= FEWEST_SIZES:
        return ()
    first, before, last = over_time[0], over_time[-2], over_time[-1]
    return tuple(
        path
        for path, (size, what) in last.items()
        if path in first and path in before and first[path][0] < size == before[path][0] and what != before[path][1]
    )


def _epoch(
    loader: Any, epoch: int, plan: Plan, recorder: EventLog, until: float, kept: list[Any], measure: Callable[[], None]
) -> bool:
    began = time.monotonic()
    recorder.write("epoch", e=epoch)
    iterator = iterator_of(loader)
    _iterators.append(iterator)
    recorder.write("started", e=epoch, s=time.monotonic() - began)
    samples = number = 0
    asked = time.monotonic()
    for batch in iterator:
        now = time.monotonic()
        nbytes, tensors, storage = weigh(batch)
        recorder.record(Batch(epoch, number, now - asked, now, nbytes, tensors, storage))
        if number < 2 and not plan.measured:
            _check_sendable(batch, recorder)
        if plan.keep:
            kept.append(batch)
        if plan.idle and number == 0:
            _wait_until_idle(recorder.folder)
        number += 1
        if number & (number - 1) == 0 and not plan.measured:  # after 1, 2, 4, ... batches
            measure()
        samples += loader.batch_size or 1
        if now > until or (plan.limit and samples >= plan.limit):
            recorder.write("cut", e=epoch, batches=number)
            return False
        asked = time.monotonic()
    recorder.write("over", e=epoch, batches=number, s=time.monotonic() - began)
    return True


_iterators: list[Any] = []  # of this process, newest last


def _exit_codes() -> dict[int, int]:
    """Exit codes of failed workers, read from the processes: torch's message may be wrong."""
    found = {}
    for worker in getattr(_iterators[-1], "_workers", []) if _iterators else []:
        worker.join(0.2)
        if worker.exitcode not in (None, 0, -signal.SIGTERM):
            found[worker.pid] = worker.exitcode
    return found


def iterator_of(loader: Any) -> Any:
    """The iterator of torch's loader or of unjam's, even if the loader's class overrides __iter__()."""
    from torch.utils.data import dataloader as torchs  # noqa: PLC0415 - imported by the program

    if not loader.num_workers:
        return torchs._SingleProcessDataLoaderIter(loader)  # noqa: SLF001
    if loader.persistent_workers and loader._iterator is not None:  # noqa: SLF001
        loader._iterator._reset(loader)  # noqa: SLF001
        return loader._iterator  # noqa: SLF001
    ours = is_unjams(loader)
    iterator = loader._get_iterator() if ours else torchs._MultiProcessingDataLoaderIter(loader)  # noqa: SLF001
    if ours or loader.persistent_workers:
        vars(loader)["_iterator"] = iterator
    return iterator


def _check_sendable(batch: Any, recorder: EventLog) -> None:
    """Record whether torch's pickler can send a batch; here we can catch the error."""
    from unjam.loader.ship.pickle_culprit import find_culprit  # noqa: PLC0415 - as above

    culprit = find_culprit("batch", batch, _try_to_send, by_name=True)
    if culprit is not None:
        recorder.record(UnsendablePart(culprit.path, culprit.type_name, culprit.reason))


def _try_to_send(part: object) -> None:
    """Pickle like a queue, but don't copy tensors: shared memory may be too small for them."""
    from multiprocessing.reduction import ForkingPickler  # noqa: PLC0415 - rare

    class Pickler(ForkingPickler):
        def reducer_override(self, obj: Any) -> Any:
            if hasattr(obj, "untyped_storage") and hasattr(obj, "requires_grad"):
                if obj.requires_grad and not obj.is_leaf:
                    raise RuntimeError("a tensor that requires grad and is not a leaf cannot be sent")
                return int, ()
            return NotImplemented

    Pickler(io.BytesIO()).dump(part)


def _wait_until_idle(folder: str) -> None:
    """Act like a slow consumer: wait until the workers have filled the prefetch queue."""
    until, last, quiet = time.monotonic() + PREFETCH_DONE.seconds, -1, 0
    while time.monotonic() < until and quiet < 20:
        now = progress(folder)
        quiet = quiet + 1 if now == last else 0
        last = now
        signal.sigtimedwait([], IDLE_STEP)


def file_offsets() -> dict[int, int]:
    """The offsets of this process's open files."""
    return {fd: _offset(fd) for fd in open_files()}


def _offset(fd: int) -> int:
    try:
        return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        return -1


def _some(values: Any) -> list[Any]:
    return list(itertools.islice(values.values() if isinstance(values, dict) else values, 20))


def _has_own_state(item: Any) -> bool:
    return hasattr(item, "__dict__") and not hasattr(item, "dtype")


def _attributes(dataset: Any) -> dict[str, tuple[int, str]]:
    """The size and digest of each dataset attribute, to see which of them loading changes."""
    found = {}
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:100]:
        try:
            large = len(value) > 10_000
        except Exception:  # noqa: BLE001 - has no length
            large = False
        size = len(value) if large or isinstance(value, (list, dict, set)) else 0
        # objects with behaviour, such as one that opens a file, are not data
        own = callable(value) or (isinstance(value, (list, tuple, dict)) and any(map(_has_own_state, _some(value))))
        found[name] = (size, "" if large or own else digest(value)[0])
    return found


def shut_down_workers(iterator: Any) -> None:
    """Shut down the workers of an iterator as torch does."""
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if callable(shut_down):
        with contextlib.suppress(Exception):
            shut_down()
