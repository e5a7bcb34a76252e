"""Records what goes wrong beside the samples: threads and helper processes that end with an exception, limits, seeds."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from types import ModuleType
from typing import Any

from unjam.doctor.check.randomness import Randomness
from unjam.doctor.check.target.observer import Observer, place_fields, worker_number
from unjam.doctor.check.trial.exception_words import words_of
from unjam.doctor.facts.trial import Place, users_place
from unjam.system.file_owner import is_users
from unjam.system.import_hook import after_import

MOST_SEEDS = 300


def record_faults(observer: Observer) -> None:
    """Patch what can be patched now, and the rest when the program imports it."""
    _record_threads(observer)
    after_import("multiprocessing.process", functools.partial(_record_processes, observer=observer))
    after_import("torch.distributed.distributed_c10d", functools.partial(_record_ranks, observer=observer))
    after_import("multiprocessing.queues", functools.partial(_record_lost, observer=observer))
    seeds = _Seeds(observer)
    after_import("random", lambda module: seeds.patch(module, "seed", "random.seed"))
    after_import("numpy.random", lambda module: seeds.patch(module, "seed", "numpy.random.seed"))
    after_import("torch.random", lambda module: seeds.patch(module, "manual_seed", "torch.manual_seed"))


def _record_threads(observer: Observer) -> None:
    before = threading.excepthook

    def hook(given: Any) -> None:
        with contextlib.suppress(Exception):
            if given.exc_value is not None and given.thread is not None:
                observer.write("ended", what="thread", name=given.thread.name, **words_of(given.exc_value))
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
                    observer.write("ended", what="process", name=this.name, **words_of(error))
                raise

        with contextlib.suppress(Exception):
            this.run = recorded
        return begin(this, *args, **kwargs)

    module.BaseProcess._bootstrap = bootstrapped  # noqa: SLF001


# generators that were seeded since this was cleared: their states right after it, and the line
latest: dict[str, tuple[str, Place]] = {}


def _record_lost(module: ModuleType, *, observer: Observer) -> None:
    """Record what a queue's feeder thread could not pickle: whoever waits for it waits for ever."""
    told = module.Queue._on_queue_feeder_error  # noqa: SLF001 - the hook for such errors

    def lost(error: BaseException, sent: Any) -> Any:
        is_exception = isinstance(sent, tuple) and any(type(one).__name__ == "ExceptionWrapper" for one in sent)
        with contextlib.suppress(Exception):
            if not is_exception:  # one that cannot be pickled is seen where it was raised
                observer.write("lost", worker=worker_number(), **_culprit(sent), **words_of(error))
        return told(error, sent)

    module.Queue._on_queue_feeder_error = staticmethod(lost)  # noqa: SLF001 - as above


def _culprit(sent: Any) -> dict[str, str]:
    """The part of a batch that cannot be pickled: its path and its type."""
    from multiprocessing.reduction import ForkingPickler  # noqa: PLC0415 - rare

    from unjam.loader.ship.pickle_culprit import find_culprit  # noqa: PLC0415 - as above

    batch = sent[1] if isinstance(sent, tuple) and len(sent) == 2 else sent

    def attempt(part: object) -> None:
        ForkingPickler.dumps(part)

    found = find_culprit("batch", batch, attempt)
    return {"path": found.path, "kind": found.type_name} if found is not None else {"path": "", "kind": ""}


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

        for owner in (module, sys.modules.get("torch")):
            if getattr(owner, name, None) is function:
                vars(owner)[name] = seeded

    def _note(self, what: str, place: Place) -> None:
        generator = what.rpartition(".")[0]
        latest[generator] = (Randomness({}).states().get(generator, ""), place)
        if self._count < MOST_SEEDS:
            self._count += 1
            self._observer.write("seeded", what=what, worker=worker_number(), file=place.file, line=place.line)


def _record_ranks(module: ModuleType, *, observer: Observer) -> None:
    """Note who asks for the rank before there is a group of ranks: the answer is that of a single process."""
    told: set[Place] = set()
    is_initialized = module.is_initialized

    @functools.wraps(is_initialized)
    def asked() -> Any:
        answer = is_initialized()
        if not answer and len(told) < MOST_SEEDS and observer.active:
            with contextlib.suppress(Exception):
                caller = sys._getframe(1)  # noqa: SLF001 - the caller's frame
                place = users_place(caller)
                if place is not None and place not in told and is_users(caller.f_code.co_filename):
                    told.add(place)
                    observer.write("rank_asked", file=place.file, line=place.line)
        return answer

    for owner in (module, sys.modules.get("torch.distributed")):
        if getattr(owner, "is_initialized", None) is is_initialized:
            vars(owner)["is_initialized"] = asked


def limit_set(observer: Observer, arguments: tuple[Any, ...], frame: Any) -> None:
    """Record a call of `resource.setrlimit`."""
    import resource  # noqa: PLC0415 - it was imported by the program

    kind, values = arguments[0], arguments[-1]
    name = next(
        (name for name in dir(resource) if name.startswith("RLIMIT_") and getattr(resource, name) == kind), str(kind)
    )
    observer.write("limit", name=name, value=int(values[0]), **place_fields(frame))
