"""Records faults outside of the samples: exceptions that end threads and processes, batches that cannot be pickled, seeds."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from types import ModuleType
from typing import Any

from unjam.doctor.check.event_log import exception_fields, worker_number
from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.target.observer import Observer, replace_everywhere
from unjam.doctor.facts.faults import EndedByException, LostBatch, SeedCall
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.file_owner import is_users
from unjam.system.import_hook import after_import

MOST_SEEDS = 300

# generators seeded since this was last cleared: their state right after that, and the line
latest_seeds: dict[str, tuple[str, Place]] = {}


def record_faults(observer: Observer) -> None:
    """Patch what can be patched now, and the rest when the program imports it."""
    _record_threads(observer)
    after_import("multiprocessing.process", functools.partial(_record_processes, observer=observer))
    after_import("torch.distributed.distributed_c10d", functools.partial(_record_ranks, observer=observer))
    after_import("multiprocessing.queues", functools.partial(_record_lost_batches, observer=observer))
    seeds = _Seeds(observer)
    after_import("random", lambda module: seeds.patch(module, "seed", "random.seed"))
    after_import("numpy.random", lambda module: seeds.patch(module, "seed", "numpy.random.seed"))
    after_import("torch.random", lambda module: seeds.patch(module, "manual_seed", "torch.manual_seed"))


def _record_end(observer: Observer, what: str, name: str, error: BaseException) -> None:
    fields = exception_fields(error)
    del fields["trace"]
    observer.record(EndedByException(what, name, os.getpid(), **fields, at=time.monotonic()))


def _record_threads(observer: Observer) -> None:
    before = threading.excepthook

    def hook(given: Any) -> None:
        with contextlib.suppress(Exception):
            if given.exc_value is not None and given.thread is not None:
                _record_end(observer, "thread", given.thread.name, given.exc_value)
        before(given)

    threading.excepthook = hook


def _record_processes(module: ModuleType, *, observer: Observer) -> None:
    begin = module.BaseProcess._bootstrap  # noqa: SLF001 - where a child begins

    @functools.wraps(begin)
    def bootstrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
        run = this.run

        def recorded() -> None:
            try:
                run()
            except BaseException as error:
                with contextlib.suppress(Exception):
                    _record_end(observer, "process", this.name, error)
                raise

        with contextlib.suppress(Exception):
            this.run = recorded
        return begin(this, *args, **kwargs)

    module.BaseProcess._bootstrap = bootstrapped  # noqa: SLF001


def _record_lost_batches(module: ModuleType, *, observer: Observer) -> None:
    """Record batches that a queue's feeder thread could not pickle: a process that waits for one waits for ever."""
    handle_error = module.Queue._on_queue_feeder_error  # noqa: SLF001 - the hook for such errors

    def lost(error: BaseException, sent: Any) -> Any:
        is_exception = isinstance(sent, tuple) and any(type(one).__name__ == "ExceptionWrapper" for one in sent)
        with contextlib.suppress(Exception):
            if not is_exception:  # an exception that cannot be pickled is recorded where it is raised
                fields = exception_fields(error)
                del fields["trace"]
                observer.record(LostBatch(worker_number(), *_culprit(sent), **fields))
        return handle_error(error, sent)

    module.Queue._on_queue_feeder_error = staticmethod(lost)  # noqa: SLF001 - as above


def _culprit(sent: Any) -> tuple[str, str]:
    """The part of a batch that cannot be pickled: its path and its type."""
    from multiprocessing.reduction import ForkingPickler  # noqa: PLC0415 - rare

    from unjam.loader.ship.pickle_culprit import find_culprit  # noqa: PLC0415 - as above

    def attempt(part: object) -> None:
        ForkingPickler.dumps(part)

    found = find_culprit("batch", sent[1] if isinstance(sent, tuple) and len(sent) == 2 else sent, attempt)
    return (found.path, found.type_name) if found is not None else ("", "")


class _Seeds:
    """The calls that seed a global generator."""

    def __init__(self, observer: Observer) -> None:
        self._observer, self._count = observer, 0

    def patch(self, module: ModuleType, name: str, shown: str) -> None:
        """Record calls of a module's function."""
        function = getattr(module, name)

        @functools.wraps(function)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            answer = function(*args, **kwargs)
            if self._observer.active:
                with contextlib.suppress(Exception):
                    caller = sys._getframe(1)  # noqa: SLF001 - the caller's frame
                    place = users_place(caller)
                    if place and not caller.f_code.co_filename.endswith("torch/utils/data/_utils/worker.py"):
                        self._note(shown, place)
            return answer

        replace_everywhere(function, name, seeded, module, sys.modules.get("torch"))

    def _note(self, what: str, place: Place) -> None:
        generator = what.rpartition(".")[0]
        latest_seeds[generator] = (Randomness({}).states().get(generator, ""), place)
        if self._count < MOST_SEEDS:
            self._count += 1
            self._observer.record(SeedCall(what, place, os.getpid(), worker_number(), time.monotonic()))


def _record_ranks(module: ModuleType, *, observer: Observer) -> None:
    """Record which lines read the rank before the process group exists: they get that of a single process."""
    known: set[Place] = set()
    is_initialized = module.is_initialized

    @functools.wraps(is_initialized)
    def asked() -> Any:
        answer = is_initialized()
        if not answer and len(known) < MOST_SEEDS and observer.active:
            with contextlib.suppress(Exception):
                caller = sys._getframe(1)  # noqa: SLF001 - the caller's frame
                place = users_place(caller)
                if place is not None and place not in known and is_users(caller.f_code.co_filename):
                    known.add(place)
                    observer.write("rank_asked", place=f"{place.file}:{place.line}")
        return answer

    replace_everywhere(is_initialized, "is_initialized", asked, module, sys.modules.get("torch.distributed"))
