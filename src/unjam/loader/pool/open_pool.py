"""How the workers of a loader start, and what they are given.

NOTE [ Start method ]

Without `multiprocessing_context` ("auto") workers come from unjam's fork server and get the dataset
by value, so that no thread or lock of the training process is copied. If something cannot be
sent, we fork them from the training process, as torch does. We warn once what it is, what the
present risk is and how to remove it. If a freeze follows, it is explained like any other. If a
second copy of the dataset would not fit into memory, we fork only if the audit finds that safe.

We obey a context that the user gives: `fork` forks; `spawn` and `forkserver` start processes as
multiprocessing does. These two get the dataset by value too, sent once for all workers.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import multiprocessing
from typing import Any

from unjam.errors import CannotShipError, CannotStartError
from unjam.loader.pool import fork_server
from unjam.loader.pool.cannot_ship import cannot_ship
from unjam.loader.pool.fork_server import ForkClient
from unjam.loader.pool.launcher import ContextLauncher, ServerLauncher
from unjam.loader.pool.pool_registry import close_all
from unjam.loader.pool.pool_request import PayloadCache, PoolRequest
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.shared_handles import SharedHandle, shared_handles
from unjam.loader.pool.templates import TemplateCache, TemplateProcess
from unjam.loader.pool.worker_handle import SetupMessages
from unjam.loader.pool_spec import PoolSpec
from unjam.loader.ship import shipping
from unjam.loader.ship.process_state import ProcessState, tracker_fd
from unjam.loader.worker.spec import WorkerInput, WorkerSpec
from unjam.system.logs import log
from unjam.system.memory_limits import available_memory

# A payload may take this part of the available memory; it is a second copy of the dataset's arrays.
LARGEST_SHARE = 0.5
_warned: set[str] = set()
_FORKS = "cannot be sent to a worker, so workers are forked from this process, as in torch"


def most_workers(spec: PoolSpec) -> None:
    """Return None: all workers run on this machine."""


def open_pool(request: PoolRequest) -> ProcessPool:
    """Return a pool of processes of this machine; none has started yet. See NOTE [ Start method ]."""
    worker_input, context, cache = request.worker_input, request.context, request.cache
    _at_exit_once()
    method = None if context is None else context.get_start_method()
    if method == "fork" or (method is None and cache.must_fork):
        return _forking(request)
    try:
        cache.payload = _ship(worker_input, cache, within=_room() if method is None else None, templates=method is None)
    except shipping.TooLarge as error:
        cache.payload = None
        if _fork_is_safe():
            _warn_once(
                "size",
                "the dataset takes %.1f GB: a second copy would leave too little memory, so workers are forked from this "
                "process",
                error.size / 1e9,
            )
            return _forking(request)
        cache.payload = _ship(worker_input, cache, within=None, templates=False)
    except Exception as error:
        if method is None:
            return _fall_back(request, cache.problem_of(worker_input, error))
        raise cannot_ship(worker_input, error, method) from error
    connections = shared_handles(worker_input, cache.payload.connections) if cache.payload.connections else []
    if connections and method is None and "fork" in multiprocessing.get_all_start_methods():
        cache.payload = None
        for one in connections:
            _warn_once(one.path, f"%s (%s) {_FORKS}; the risk: %s\n%s", one.path, one.type_name, one.risk, one.cure)
        return _forking(request)
    _warn_of_handles(connections)
    if method is None:
        return open_shipped(request.specs, cache, worker_input)
    setup = SetupMessages(ProcessState(), cache.payload, tracker_fd(), from_fork_server=False)
    return ProcessPool(ContextLauncher(context, None), request.specs, setup, cache.reports)


def open_fallback_pool(request: PoolRequest, error: BaseException) -> ProcessPool:
    """A worker could not rebuild its input: return a forked pool, or raise naming the culprit."""
    context = request.context
    problem = cannot_ship(request.worker_input, error, None if context is None else context.get_start_method())
    if context is not None:
        raise problem from error
    pool = _fall_back(request, problem)
    request.cache.must_fork = True
    return pool


def _ship(worker_input: WorkerInput, cache: PayloadCache, *, within: int | None, templates: bool) -> shipping.Payload:
    """Return the worker input as a payload, without the containers that a template holds."""
    numbers = cache.templates.find_containers(worker_input.dataset if templates else None)
    if within is not None and numbers:
        within -= cache.templates.estimated_bytes()
    return shipping.ship(worker_input, cache.payload, within=within, numbers=numbers, with_state=True)


def open_shipped(
    specs: list[WorkerSpec],
    cache: PayloadCache,
    worker_input: WorkerInput | None = None,
    *,
    kind: type[ProcessPool] = ProcessPool,
) -> ProcessPool:
    """Return a pool for the cache's payload, whose workers come from a template or else from the fork server itself.

    `worker_input`: None if the payload comes from another machine, as a whole.
    """
    _at_exit_once()
    assert cache.payload is not None, "nothing was shipped"
    _preload(cache)
    template = cache.templates.template(cache.payload, specs[0].threads, cache.reports.imported)
    cache.reports.imported |= cache.templates.imported
    if template is None:
        if worker_input is not None and cache.templates.has_containers:
            cache.payload = shipping.ship(worker_input, cache.payload, with_state=True)
        setup = SetupMessages(ProcessState(), cache.payload, tracker_fd(), from_fork_server=True)
        return kind(ServerLauncher(), specs, setup, cache.reports)
    payload = cache.payload
    launcher = ServerLauncher(_RenewableTemplate(cache.templates, template, payload, specs[0].threads))
    has_input = template.whole is not None
    setup = SetupMessages(ProcessState(), None if has_input else payload, None, from_fork_server=True)
    return kind(launcher, specs, setup, cache.reports)


class _RenewableTemplate:
    """The template of a pool; makes it again if it is gone."""

    def __init__(
        self, templates: TemplateCache, template: TemplateProcess, payload: shipping.Payload, threads: int | None
    ) -> None:
        self._cache = templates
        self._payload = payload
        self._threads = threads
        self._template: TemplateProcess | None = template
        self._held = template.whole, template.containers
        template.users.add(self)

    def __call__(self) -> ForkClient:
        if self._template is None or not self._template.usable:
            self._template = self._cache.template(self._payload, self._threads)
            # The workers' setup messages depend on what the first template held. Another epoch may have
            # other containers by now. The same ones are sent again, in new `LargeContainer` objects.
            whole, containers = self._held
            if (
                self._template is None
                or self._template.whole is not whole
                or [id(one.container) for one in self._template.containers] != [id(one.container) for one in containers]
            ):
                raise CannotStartError(
                    f"the template process of these workers is gone and cannot be replaced: {self._cache.reason}"
                )
            self._template.users.add(self)
        return self._template


def _preload(cache: PayloadCache) -> None:
    assert cache.payload is not None, "nothing was shipped"
    # keep the order in which workers imported them
    names = [*cache.reports.imported, *sorted(cache.payload.modules - cache.reports.imported.keys())]
    fork_server.with_server(lambda server: server.preload(names))


def _warn_of_handles(handles: list[SharedHandle]) -> None:
    for one in handles:
        _warn_once(one.path, "%s (%s): %s\n%s", one.path, one.type_name, one.risk, one.cure)


def _forking(request: PoolRequest) -> ProcessPool:
    """Return a pool of processes forked from this one, with the user's context if there is one."""
    _warn_of_handles(shared_handles(request.worker_input))
    launcher = ContextLauncher(request.context or multiprocessing.get_context("fork"), request.worker_input)
    # such a worker has the user's `__main__`
    specs = [dataclasses.replace(spec, by_value=False) for spec in request.specs]
    setup = SetupMessages(None, None, None, from_fork_server=False)
    return ProcessPool(launcher, specs, setup, request.cache.reports)


def _fork_is_safe() -> bool:
    from unjam.system.fork_safety import risks  # noqa: PLC0415 - only when something cannot be sent

    return not risks()


def _fall_back(request: PoolRequest, problem: CannotShipError) -> ProcessPool:
    if "fork" not in multiprocessing.get_all_start_methods():
        raise problem
    from unjam.system.fork_safety import risks  # noqa: PLC0415 - only when something cannot be sent

    reasons = risks()
    risk = f"the risk: {'; '.join(reasons)}" if reasons else "forking is safe at the moment"
    handle = next((one for one in shared_handles(request.worker_input) if one.path == problem.path), None)
    if handle is not None:
        risk += f"; {handle.risk}"
    if handle is not None or reasons:
        risk += f"\n{problem.cure}"
    _warn_once(problem.path, f"%s (%s) {_FORKS}; %s", problem.path, problem.type_name, risk)
    return _forking(request)


def _room() -> int | None:
    """The largest payload allowed: a second copy of the arrays, and workers need memory too."""
    left = available_memory()
    return None if left is None else max(1 << 30, int(left * LARGEST_SHARE))


def _warn_once(key: str, text: str, *values: Any) -> None:
    if key not in _warned:
        _warned.add(key)
        log.warning(text, *values)


@functools.cache
def _at_exit_once() -> None:
    atexit.register(_at_exit)


def _at_exit() -> None:
    close_all()
    fork_server.shut_down()
