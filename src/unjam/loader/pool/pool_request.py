"""What it takes to open the pool of a loader, and which module opens it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from unjam.errors import CannotShipError
from unjam.loader.pool.cannot_ship import cannot_ship
from unjam.loader.pool.protocol import Pool
from unjam.loader.pool.templates import TemplateCache
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.pool_spec import PoolSpec
from unjam.loader.ship import shipping
from unjam.loader.worker.spec import WorkerInput, WorkerSpec


@dataclass(slots=True)
class PayloadCache:
    """A loader's last payload, reused while its content is the same, and its template."""

    payload: shipping.Payload | None = None
    # also has the installed modules that workers had to import: the server preloads them next time
    reports: WorkerReports = field(default_factory=WorkerReports)
    templates: TemplateCache = field(default_factory=TemplateCache)
    # the payload for workers on other machines; and where a cluster keeps it
    cluster_payload: shipping.Payload | None = None
    cluster_copy: Any = None
    # a worker could not rebuild its input: always fork from now on
    must_fork: bool = False

    # the last pickling error and the culprit found for it; finding it is slow
    problem: tuple[str, CannotShipError] | None = None

    def problem_of(self, worker_input: WorkerInput, error: BaseException) -> CannotShipError:
        """Return the error that names what cannot be sent; search for it only once."""
        said = f"{type(error).__name__}: {error}"
        if self.problem is None or self.problem[0] != said:
            self.problem = said, cannot_ship(worker_input, error, None)
        return self.problem[1]

    def __reduce__(self) -> Any:
        # a copy of a loader starts with an empty cache
        return PayloadCache, ()


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """What it takes to open a loader's pool.

    context: the user's `multiprocessing_context`. here: how many workers run on this machine. may_move: workers may be
    stopped to start again elsewhere.
    """

    spec: PoolSpec
    worker_input: WorkerInput
    specs: list[WorkerSpec]
    context: Any
    cache: PayloadCache
    here: int
    may_move: bool = True


class PoolOpener(Protocol):
    """A module that opens the pools of one kind of `PoolSpec`."""

    def open_pool(self, request: PoolRequest) -> Pool:
        """Return a pool; no worker has started yet."""

    def open_fallback_pool(self, request: PoolRequest, error: BaseException) -> Pool:
        """A worker could not rebuild its input: return a pool that can, or raise the error that says why."""

    def most_workers(self, spec: PoolSpec) -> int | None:
        """Return how many workers there is room for elsewhere; None: they run on this machine."""


def opener_of(spec: PoolSpec) -> PoolOpener:
    """Return the module that opens the pools of a kind."""
    return cast(PoolOpener, importlib.import_module(spec.opener))
