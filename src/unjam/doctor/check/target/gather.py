"""Gathers facts about a captured loader and its process, in a fork so that the program is not affected."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import pickletools
import platform
import sys
import tempfile
import threading
import traceback
from collections.abc import Collection, Mapping
from types import FrameType
from typing import Any

from unjam.doctor.check.inventory import Inventory, module_file, open_files
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.target import file_events
from unjam.doctor.check.target.observer import length_of
from unjam.doctor.check.trial.sandbox import UNJAM, is_unjams
from unjam.doctor.facts.case import LoaderFacts, ProcessFacts, ThreadFacts, WorkerArgument
from unjam.doctor.facts.digest import digest
from unjam.doctor.facts.source import class_place, where_set
from unjam.doctor.facts.trial import Place
from unjam.loader.ship.pickle_culprit import Culprit, find_culprit
from unjam.system import fork_safety, limits, thread_variables
from unjam.system.file_owner import is_users
from unjam.system.memory_limits import available_memory
from unjam.system.stacks import Frame

LIBRARY_OF = {"OPENCV": "cv2"}


def roots_of(loader: Any) -> dict[str, Any]:
    """The objects that a worker gets, and the sampler, which stays in the main process."""
    return {
        "dataset": loader.dataset,
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
        "sampler": loader.batch_sampler if loader.batch_sampler is not None else loader.sampler,
    }


def loader_facts(loader: Any, made_at: Place | None, iterated_at: Place | None) -> LoaderFacts:
    """The loader's options."""
    import torch.multiprocessing  # noqa: PLC0415 - imported by the program
    from torch.utils.data import IterableDataset  # noqa: PLC0415 - as above
    from torch.utils.data._utils.collate import default_collate, default_convert  # noqa: PLC0415 - as above

    from unjam.loader.transport.collating import is_default  # noqa: PLC0415 - as above

    context = loader.multiprocessing_context
    ours = is_unjams(loader)
    default = UNJAM if ours else multiprocessing.get_start_method()
    method = context.get_start_method() if context is not None else default
    dataset, sampler = loader.dataset, loader.sampler
    inner = getattr(loader.batch_sampler, "sampler", sampler)
    return LoaderFacts(
        kind=type(loader).__name__,
        driver="unjam" if ours else "torch",
        dataset=type(dataset).__qualname__.rpartition(".")[2],
        dataset_place=class_place(type(dataset)) if is_users(module_file(type(dataset))) else None,
        iterable=isinstance(dataset, IterableDataset),
        length=length_of(dataset),
        batch_size=getattr(loader.batch_sampler, "batch_size", None)
        if loader.batch_size is None
        else loader.batch_size,
        num_workers=loader.num_workers,
        start_method=method,
        prefetch_factor=loader.prefetch_factor or 2,
        timeout=loader.timeout,
        pins_without_accelerator=bool(loader.pin_memory) and not _has_accelerator(),
        persistent_workers=bool(loader.persistent_workers),
        drop_last=bool(loader.drop_last) or bool(getattr(loader.batch_sampler, "drop_last", False)),
        sampler=type(inner).__name__,
        collate=_name(loader.collate_fn),
        default_collate=is_default(loader.collate_fn) or loader.collate_fn in (default_collate, default_convert),
        worker_init=_name(loader.worker_init_fn) if loader.worker_init_fn is not None else "",
        worker_init_place=_function_place(loader.worker_init_fn),
        made_at=made_at,
        iterated_at=iterated_at,
        sharing=str(torch.multiprocessing.get_sharing_strategy()),
        batches=length_of(loader),
        order_repeats=_order_repeats(inner, loader.batch_sampler),
        list_reused=_list_reused(loader.batch_sampler),
        main_class=type(dataset).__module__ == "__main__",
        bypassed_getitem=_bypassed(dataset),
    )


def _bypassed(dataset: Any) -> tuple[str, str, Place | None] | None:
    """Whether a base class's __getitems__ returns other samples than the __getitem__ of a derived class."""
    order = type(dataset).__mro__
    single = next((kind for kind in order if "__getitem__" in vars(kind)), None)
    whole = next((kind for kind in order if "__getitems__" in vars(kind)), None)
    if single is None or whole is None or order.index(single) >= order.index(whole):
        return None
    randomness = Randomness({})
    wanted = list(range(min(3, len(dataset))))
    try:
        randomness.seed(0)
        one = digest([dataset[index] for index in wanted])[0]
        randomness.seed(0)
        other = digest(list(dataset.__getitems__(wanted)))[0]
    except Exception:  # noqa: BLE001 - other rules report samples that raise
        return None
    if one == other:
        return None
    code = getattr(vars(single)["__getitem__"], "__code__", None)
    place = Place(code.co_filename, code.co_firstlineno) if code is not None else None
    return single.__name__, whole.__name__, place


def _has_accelerator() -> bool:
    import torch  # noqa: PLC0415 - imported by the program

    known = getattr(torch, "accelerator", None)
    return bool(known.is_available()) if known is not None else bool(torch.cuda.is_available())


def _order_repeats(*samplers: Any) -> bool:
    """Whether a sampler repeats its order until set_epoch is called.

    We call set_epoch to find out; this changes only the fork.
    """
    for sampler in samplers:
        if hasattr(sampler, "set_epoch"):
            try:
                once, twice = _first_items(sampler), _first_items(sampler)
                sampler.set_epoch(1)
                first = _first_items(sampler)
                sampler.set_epoch(2)
                return once == twice and first != _first_items(sampler)
            except Exception:  # noqa: BLE001 - a sampler that fails here
                return False
    return False


def _first_items(sampler: Any) -> list[str]:
    return [str(one) for _, one in zip(range(200), sampler, strict=False)]


def _list_reused(sampler: Any) -> bool:
    if sampler is None:
        return False
    try:
        seen = [
            (batch, [str(one) for one in batch])
            for _, batch in zip(range(50), sampler, strict=False)
            if isinstance(batch, Collection) and not isinstance(batch, tuple)
        ]
        return any([str(one) for one in batch] != then for batch, then in seen)
    except Exception:  # noqa: BLE001 - as above
        return False


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _function_place(function: Any) -> Place | None:
    code = getattr(getattr(function, "func", function), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else None


def threads_now(inventory: Inventory) -> tuple[ThreadFacts, ...]:
    """The other Python threads, their stacks, and the locks of the loader that their code can reach."""
    frames = sys._current_frames()  # noqa: SLF001 - the only way
    # this function's own frame: a reference cycle would keep all its callers' variables until the next garbage collection
    frames.pop(threading.get_ident(), None)
    locks = {id(found.value): path for path, found in inventory.found.items() if hasattr(found.value, "acquire")}
    found = []
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.ident not in frames:
            continue
        calls: list[Frame] = []
        known: list[str] = []
        for frame, line in traceback.walk_stack(frames[thread.ident]):
            calls.append(Frame(frame.f_code.co_filename, line, frame.f_code.co_name))
            known += [locks[id(value)] for value in _reachable(frame) if id(value) in locks]
        found.append(ThreadFacts(thread.name, tuple(calls), tuple(dict.fromkeys(known))))
    return tuple(found)


def _reachable(frame: FrameType) -> list[Any]:
    values = list(frame.f_locals.values())
    this = frame.f_locals.get("self")
    values += list(getattr(this, "__dict__", {}).values())
    values += [frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals]
    return values


def process_snapshot(loader: Any) -> dict[str, Any]:
    """The fields of ProcessFacts that only the program's own process knows: a fork has no threads and no accelerator."""
    known = fork_safety.collect_facts()
    threads = threads_now(Inventory(roots_of(loader)))
    return {
        "threads": threads, "native_threads": known.native_threads, "pools": _pools(), "accelerator": known.accelerator,
    }  # fmt: skip


def process_facts(snapshot: Mapping[str, Any], environment: Mapping[str, str]) -> ProcessFacts:
    """Facts about the process and the machine."""
    import torch  # noqa: PLC0415 - imported by the program

    free, _ = limits.shared_memory()
    most, used = limits.descriptors()
    main = sys.modules["__main__"]
    return ProcessFacts(
        cpus=limits.processors(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        **snapshot,
        shm_free=free,
        descriptors=most,
        descriptors_used=used,
        memory=available_memory(),
        temporary=tempfile.gettempdir(),
        interactive=not os.path.isfile(getattr(main, "__file__", "") or ""),
        opened={
            target: place for target in open_files().values() if (place := file_events.opened_at(target)) is not None
        },
        idle_variables=thread_variables.unread_variables(_possibly_unread(environment)),
        late_variables=_late_variables(environment, snapshot["pools"]),
    )


def _possibly_unread(environment: Mapping[str, str]) -> dict[str, str]:
    found = thread_variables.set_by_program(environment)
    for name, value in environment.items():
        head = name.partition("_")[0]
        if LIBRARY_OF.get(head, head.lower()) in sys.modules:
            found[name] = value
    return found


def _pools() -> tuple[Mapping[str, Any], ...]:
    import threadpoolctl  # noqa: PLC0415 - takes milliseconds

    found = [
        {"api": pool["user_api"], "library": os.path.basename(pool["filepath"]), "threads": pool["num_threads"]}
        for pool in threadpoolctl.threadpool_info()
    ]
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "getNumThreads"):
        found.append({"api": "opencv", "library": "cv2", "threads": cv2.getNumThreads()})
    return tuple(found)


_READERS = {
    "OMP_NUM_THREADS": "openmp",
    "OPENBLAS_NUM_THREADS": "blas",
    "MKL_NUM_THREADS": "blas",
    "OPENCV_FOR_THREADS_NUM": "opencv",
}


def _late_variables(environment: Mapping[str, str], pools: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """Variables that had no effect because the program set them after the library was loaded."""
    found = {}
    for name, value in thread_variables.set_by_program(environment).items():
        for pool in pools:
            if _READERS.get(name) == pool["api"] and value.isdigit() and int(value) < pool["threads"]:
                found[name] = f"{value}, but {pool['library']} has {pool['threads']} threads"
    return found


# -- pickling for workers --------------------------------------------------------------------------


def worker_arguments(roots: Mapping[str, Any]) -> tuple[WorkerArgument, ...]:
    """Whether each argument of a worker can be pickled with spawn's and forkserver's pickler."""
    from multiprocessing import context, reduction  # noqa: PLC0415 - registers torch's reducers

    import torch.multiprocessing  # noqa: F401, PLC0415 - as above

    sent = {name: root for name, root in roots.items() if name != "sampler" and root is not None}
    # locks and queues can be pickled only while a process is being started
    context.set_spawning_popen(_Starting())  # type: ignore[arg-type]
    try:
        return tuple(_try_to_pickle(name, root, reduction.ForkingPickler) for name, root in sent.items())
    finally:
        context.set_spawning_popen(None)


class _Starting:
    """Imitates a process that is being started and can receive descriptors."""

    sentinel = -1

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    @staticmethod
    def DupFd(fd: int) -> Any:  # noqa: N802 - multiprocessing's name
        from multiprocessing.popen_spawn_posix import _DupFd  # noqa: PLC0415 - only here

        return _DupFd(fd)


def _try_to_pickle(name: str, root: Any, pickler: Any) -> WorkerArgument:
    def attempt(part: object) -> None:
        pickler.dumps(part)

    try:
        data = bytes(pickler.dumps(root))
    except Exception:  # noqa: BLE001 - any error is the answer
        culprit = find_culprit(name, root, attempt, by_name=True) or Culprit(
            name, type(root).__name__, "it cannot be pickled"
        )
        return WorkerArgument(
            name, culprit.path, culprit.type_name, culprit.reason, _place_of(name, root, culprit.path)
        )
    # storages are sent as descriptors, which only a started process has
    back, back_place = ("", None) if b"rebuild_storage" in data else _unpickle_error(data)
    return WorkerArgument(
        name, nbytes=len(data), unpickle_error=back, unpickle_error_place=back_place, from_main=_from_main(data)
    )


def _from_main(data: bytes) -> tuple[str, ...]:
    """The classes and functions of __main__ that a pickle refers to."""
    found: dict[str, None] = {}
    texts: list[str] = []
    with contextlib.suppress(Exception):  # as far as it can be read
        for operation, argument, _ in pickletools.genops(data):
            if isinstance(argument, str):
                texts.append(argument)
                if operation.name == "GLOBAL" and argument.startswith("__main__ "):
                    found[argument.partition(" ")[2]] = None
            elif operation.name == "STACK_GLOBAL" and len(texts) > 1 and texts[-2] == "__main__":
                found[texts[-1]] = None
    return tuple(found)


def _unpickle_error(data: bytes) -> tuple[str, Place | None]:
    """Why it cannot be unpickled, and the user's line that raised."""
    try:
        pickle.loads(data)
    except Exception as error:  # noqa: BLE001 - as above
        if "main__" in str(error) or isinstance(error, (EOFError, OSError)):
            return "", None  # found by another check, or a descriptor that only a started process has
        places = [
            Place(one.filename, one.lineno or 0)
            for one in traceback.extract_tb(error.__traceback__)
            if is_users(one.filename)
        ]
        own = [one for one in places if one.file != __file__]
        return f"{type(error).__name__}: {error}", own[-1] if own else None
    return "", None


def _place_of(name: str, root: Any, path: str) -> Place | None:
    """The line that set the last attribute of a path."""
    owner, place = root, None
    for step in path.removeprefix(name).replace("[", ".[").split(".")[1:]:
        if step.startswith("[") or " " in step:
            break
        found = where_set(owner, step)
        place = found or place
        owner = getattr(owner, step, None)
    code = getattr(root, "__code__", None)
    if place is None and code is not None and is_users(code.co_filename):
        return Place(code.co_filename, code.co_firstlineno)
    return place
