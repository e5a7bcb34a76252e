"""Which way the workers of a loader start, and what they are given.

NOTE [ Start method ]

With no `multiprocessing_context` ("auto") workers come from unjam's fork server and get the dataset by value, so that
none of the training process's threads and locks is copied. Where something cannot be sent, and only then, they are
forked from the training process, as torch's are; what it is, what the risk is now and how to remove it is said once. A
freeze that follows is explained like any other. A dataset so large that a second copy of it would not fit into memory is
forked only where the audit finds that safe.

A context that the user gives is obeyed: `fork` forks, `spawn` and `forkserver` start processes multiprocessing's way;
these too get the dataset by value, once for all workers.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
from dataclasses import dataclass, field
from typing import Any

from unjam.errors import CannotShipError, CannotStartError
from unjam.loader.pool import fork_server
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.pool.launcher import ContextNursery, ServerNursery
from unjam.loader.pool.open_pools import close_all
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.templates import Keeper, Template
from unjam.loader.pool.worker_handle import BeginFrame
from unjam.loader.pool.worker_reports import Learnt
from unjam.loader.ship import shipping
from unjam.loader.ship.process_state import World, tracker_fd
from unjam.loader.worker.spec import Cargo, WorkerSpec
from unjam.system.logs import log
from unjam.system.memory_limits import available_memory

# a payload may take this part of the memory that is left; it is a second copy of the dataset's arrays
LARGEST_SHARE = 0.5
_told: set[str] = set()


@dataclass(slots=True)
class ShipCache:
    """The last payload of a loader, used again while its content is the same, and its template. Never travels itself."""

    payload: shipping.Payload | None = None
    # among them, installed modules that workers had to import themselves: next time the server does it once for all
    learnt: Learnt = field(default_factory=Learnt)
    keeper: Keeper = field(default_factory=Keeper)
    # a worker could not rebuild what it was sent: do not try again
    must_fork: bool = False

    # the last thing that could not be sent, and what pickling said: looking for it takes a while
    problem: tuple[str, CannotShipError] | None = None

    @property
    def rebuilt(self) -> str:
        """Why each worker rebuilds the dataset for itself; see `Statistics`."""
        return self.keeper.reason

    def problem_of(self, cargo: Cargo, error: BaseException) -> CannotShipError:
        """What cannot be sent, looked for once."""
        said = f"{type(error).__name__}: {error}"
        if self.problem is None or self.problem[0] != said:
            self.problem = said, _cannot_ship(cargo, error, None)
        return self.problem[1]

    def __reduce__(self) -> Any:
        return ShipCache, ()

    def __deepcopy__(self, memo: Any) -> ShipCache:
        return ShipCache()

    def __copy__(self) -> ShipCache:
        return ShipCache()


def open_pool(cargo: Cargo, specs: list[WorkerSpec], context: Any, cache: ShipCache) -> ProcessPool:
    """A pool for these workers; nothing has started yet. See NOTE [ Start method ]."""
    _at_exit_once()
    method = None if context is None else context.get_start_method()
    if method == "fork":
        return _forking(cargo, specs, context, cache)
    if cache.must_fork and method is None:
        return _forking(cargo, specs, multiprocessing.get_context("fork"), cache)
    try:
        cache.payload = _ship(cargo, cache, within=_room() if method is None else None, templates=method is None)
    except shipping.TooLarge as error:
        cache.payload = None
        if _fork_is_safe():
            _tell_once(
                "size",
                "the dataset holds %.1f GB, and a second copy would not fit well into memory; its workers are forked from "
                "this process",
                error.size / 1e9,
            )
            return _forking(cargo, specs, multiprocessing.get_context("fork"), cache)
        cache.payload = _ship(cargo, cache, within=None, templates=False)
    except Exception as error:
        if method is None:
            return _fall_back(cargo, specs, cache.problem_of(cargo, error), cache)
        raise _cannot_ship(cargo, error, method) from error
    if method is None:
        return _served(cargo, specs, cache)
    begin = BeginFrame(World.here(), cache.payload, tracker_fd(), adopted=False)
    return ProcessPool(ContextNursery(context, None), specs, begin, cache.learnt)


def fork_instead(
    cargo: Cargo, specs: list[WorkerSpec], context: Any, cache: ShipCache, error: BaseException
) -> ProcessPool:
    """What was sent could not be rebuilt in a worker: a forked pool, or an error that names the culprit."""
    problem = _cannot_ship(cargo, error, None if context is None else context.get_start_method())
    if context is not None:
        raise problem from error
    pool = _fall_back(cargo, specs, problem, cache)
    cache.must_fork = True
    return pool


def _ship(cargo: Cargo, cache: ShipCache, *, within: int | None, templates: bool) -> shipping.Payload:
    """The cargo as a payload; what a template has of it is left out."""
    numbers = cache.keeper.survey(cargo.dataset) if templates else {}
    if within is not None and numbers:
        within -= cache.keeper.weight()
    return shipping.ship(cargo, cache.payload, within=within, numbers=numbers, with_state=True)


def _served(cargo: Cargo, specs: list[WorkerSpec], cache: ShipCache) -> ProcessPool:
    """A pool whose workers come from a template or, where there is none, from the fork server itself."""
    assert cache.payload is not None, "nothing was shipped"
    _preload(cache)
    template = cache.keeper.template(cache.payload, specs[0].threads, cache.learnt.imported)
    cache.learnt.imported |= cache.keeper.imported
    if template is None:
        if cache.keeper.has_crowds:  # what was left out for a template has to go along
            cache.payload = shipping.ship(cargo, cache.payload, with_state=True)
        begin = BeginFrame(World.here(), cache.payload, tracker_fd(), adopted=True)
        return ProcessPool(ServerNursery(), specs, begin, cache.learnt)
    payload = cache.payload
    nursery = ServerNursery(_Again(cache.keeper, template, payload, specs[0].threads))
    has_cargo = template.whole is not None
    begin = BeginFrame(World.here(), None if has_cargo else payload, None, adopted=True)
    return ProcessPool(nursery, specs, begin, cache.learnt)


class _Again:
    """The template of a pool, made anew where it is gone."""

    def __init__(self, keeper: Keeper, template: Template, payload: shipping.Payload, threads: int | None) -> None:
        self._keeper = keeper
        self._payload = payload
        self._threads = threads
        self._template: Template | None = template
        self._whole = template.whole
        template.users.add(self)

    def __call__(self) -> ForkClient:
        if self._template is None or not self._template.usable:
            self._template = self._keeper.template(self._payload, self._threads)
            # the workers were promised what the first one had
            if self._template is None or self._template.whole is not self._whole:
                raise CannotStartError(
                    f"the template of these workers is gone, and no other can be made: {self._keeper.reason}"
                )
            self._template.users.add(self)
        return self._template


def _preload(cache: ShipCache) -> None:
    assert cache.payload is not None, "nothing was shipped"
    # what workers imported before comes in their order
    names = [*cache.learnt.imported, *sorted(cache.payload.modules - cache.learnt.imported.keys())]
    fork_server.with_server(lambda server: server.preload(names))


def _forking(cargo: Cargo, specs: list[WorkerSpec], context: Any, cache: ShipCache) -> ProcessPool:
    by_name = [spec.by_name() for spec in specs]
    begin = BeginFrame(None, None, None, adopted=False)
    return ProcessPool(ContextNursery(context, cargo), by_name, begin, cache.learnt)


def _fork_is_safe() -> bool:
    from unjam.system.fork_safety import fork_now  # noqa: PLC0415 - only when something cannot be sent

    return fork_now().safe


def _fall_back(cargo: Cargo, specs: list[WorkerSpec], problem: CannotShipError, cache: ShipCache) -> ProcessPool:
    if "fork" not in multiprocessing.get_all_start_methods():
        raise problem
    from unjam.system.fork_safety import fork_now  # noqa: PLC0415 - only when something cannot be sent

    verdict = fork_now()
    risk = "fork was found safe now" if verdict.safe else f"the risk: {'; '.join(verdict.reasons)}\n{problem.cure}"
    _tell_once(
        problem.path,
        "%s (%s) cannot be sent to a worker, so the workers are forked from this process, as torch's are; %s",
        problem.path,
        problem.type_name,
        risk,
    )
    return _forking(cargo, specs, multiprocessing.get_context("fork"), cache)


def _cannot_ship(cargo: Cargo, error: BaseException, method: str | None) -> CannotShipError:
    from unjam.loader.ship.pickle_culprit import find_culprit  # noqa: PLC0415 - only when something cannot be sent

    for name in ("dataset", "collate_fn", "worker_init_fn", "collate_additions"):
        culprit = find_culprit(name, getattr(cargo, name), _attempt)
        if culprit is not None:
            how = "" if method is None else f" by {method}"
            text = f"{culprit.path} cannot be sent to a worker{how}: it is a {culprit.type_name}\n  {culprit.reason}"
            if culprit.between_processes:
                cure = (
                    f"help: {culprit.path} is shared between processes; one that is made by multiprocessing.get_context('spawn') can be "
                    "sent, and multiprocessing_context='fork' says that forking is meant"
                )
            else:
                cure = (
                    f"help: make it in the worker: unjam.per_worker(what opens it, its arguments) in place of {culprit.path}; or open or "
                    "create it on first use in __getitem__; or pass multiprocessing_context='fork'"
                )
            return _problem(text, cure, culprit.path, culprit.type_name, error)
    return _problem(
        f"the dataset cannot be sent to a worker: {type(error).__name__}: {error}",
        "help: pass multiprocessing_context='fork', or make what is missing importable in another process",
        "the dataset",
        type(error).__name__,
        error,
    )


def _problem(text: str, cure: str, path: str, type_name: str, error: BaseException) -> CannotShipError:
    problem = CannotShipError(f"{text}\n{cure}", path=path, type_name=type_name, cure=cure)
    problem.__cause__ = error.with_traceback(None)  # it may be kept, and frames hold everything
    return problem


def _attempt(part: object) -> None:
    """Send and rebuild, here: some things can be pickled but not unpickled."""
    payload = shipping.ship(part)
    shipping.receive(payload.fd, payload.manifest, [os.dup(fd) for fd in payload.extra_fds], here=True)


def _room() -> int | None:
    """How large a payload may be: a second copy of the dataset's arrays, and the workers need memory too."""
    left = available_memory()
    return None if left is None else max(1 << 30, int(left * LARGEST_SHARE))


def _tell_once(key: str, text: str, *values: Any) -> None:
    if key not in _told:
        _told.add(key)
        log.warning(text, *values)


@functools.cache
def _at_exit_once() -> None:
    atexit.register(_at_exit)


def _at_exit() -> None:
    close_all()
    fork_server.shut_down()
