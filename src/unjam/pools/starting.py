"""Which way the workers of a loader start, and what they are given.

NOTE [ Start method ]

With no `multiprocessing_context` ("auto") workers come from unjam's fork server and get the dataset by value, so that
none of the training process's threads and locks is copied. Where something cannot be sent, and only then, they are
forked from the training process, if the audit finds that safe at this moment; it is said once. If it is not safe, the
error names the attribute. The same holds for a dataset so large that a second copy of it would not fit into memory.

A context that the user gives is obeyed: `fork` forks, `spawn` and `forkserver` start processes multiprocessing's way;
these too get the dataset by value, once for all workers.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import logging
import multiprocessing
import os
from dataclasses import dataclass, field
from typing import Any

from unjam.errors import CannotShipError
from unjam.pools import forkserver
from unjam.pools.births import ContextNursery, Nursery, ServerNursery
from unjam.pools.hands import BeginFrame
from unjam.pools.processes import ProcessPool
from unjam.pools.registry import close_all
from unjam.pools.shares import Learnt, Shares
from unjam.pools.trying import dry_run
from unjam.transport.room import available_memory
from unjam.worker import settings, shipping
from unjam.worker.spec import Cargo, WorkerSpec
from unjam.worker.tasting import Tasted
from unjam.worker.world import World, tracker_fd

log = logging.getLogger("unjam")

# a payload may take this part of the memory that is left; it is a second copy of the dataset's arrays
LARGEST_SHARE = 0.5
_told: set[str] = set()


@dataclass(slots=True)
class ShipCache:
    """The last payload of a loader, used again while its content is the same. Never travels itself."""

    payload: shipping.Payload | None = None
    # among them, installed packages that workers had to import themselves: next time the server does it once for all
    learnt: Learnt = field(default_factory=Learnt)
    shares: Shares = field(default_factory=Shares)
    # a worker could not rebuild what it was sent: do not try again
    must_fork: bool = False

    def __reduce__(self) -> Any:
        return cache_for, (self.shares.mode,)

    def __deepcopy__(self, memo: Any) -> ShipCache:
        return cache_for(self.shares.mode)

    def __copy__(self) -> ShipCache:
        return cache_for(self.shares.mode)


def cache_for(share_dataset: bool | str) -> ShipCache:  # noqa: FBT001 - it is the option
    """What a loader with this option keeps."""
    return ShipCache(shares=Shares(share_dataset))


def open_pool(cargo: Cargo, specs: list[WorkerSpec], context: Any, cache: ShipCache) -> ProcessPool:
    """A pool for these workers; nothing has started yet. See NOTE [ Start method ]."""
    _at_exit_once()
    method = None if context is None else context.get_start_method()
    if method == "fork":
        return _forking(cargo, specs, context, cache)
    if cache.must_fork and method is None and _fork_is_safe():
        return _forking(cargo, specs, multiprocessing.get_context("fork"), cache)
    try:
        cache.payload = _ship_sharing(cargo, specs, cache, within=_room() if method is None else None)
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
        cache.payload = _ship_sharing(cargo, specs, cache, within=None)
    except Exception as error:
        if method is None:
            return _fall_back(cargo, specs, _cannot_ship(cargo, error, method), cache)
        raise _cannot_ship(cargo, error, method) from error
    nursery: Nursery = ServerNursery() if method is None else ContextNursery(context, None)
    if method is None:
        _preload(cache)
    begin = BeginFrame(World.here(), cache.payload, tracker_fd(), adopted=nursery.adopts)
    return ProcessPool(nursery, specs, begin, cache.learnt)


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


def _ship_sharing(cargo: Cargo, specs: list[WorkerSpec], cache: ShipCache, *, within: int | None) -> shipping.Payload:
    """Ship, with the large containers in shared buffers where a dry run has shown that this is safe."""
    shares = cache.shares
    cargo.stands = ()
    if not shares.survey(cargo, len(specs)):
        return _ship(cargo, cache.payload, within=within)
    shares.obey(cache.learnt)
    payload = _ship(cargo, cache.payload, within=within, stands=shares.by_identity())
    if shares.by_identity() and not shares.tasted and shares.mode == "auto":
        cache.payload = payload
        _preload(cache)
        begin = BeginFrame(World.here(), payload, tracker_fd(), adopted=True)
        between = any(name.partition(".")[0] in ("multiprocessing", "socket") for name in payload.modules)
        if _taste(shares, ServerNursery(), begin, specs[0], cargo, between=between):
            payload = _ship(cargo, None, within=within, stands=shares.by_identity())
    return payload


def _taste(
    shares: Shares, nursery: Nursery, begin: BeginFrame, spec: WorkerSpec, cargo: Cargo, *, between: bool = False
) -> bool:
    """Leave alone what the dry run speaks against; whether there was any."""
    if shares.between_processes or between:
        what = shares.between_processes or "something in the dataset"
        tasted = Tasted(
            0,
            f"{what} belongs to several processes, and a dry run would take from it (share_dataset=True does without)",
            {},
        )
    else:
        tasted = dry_run(nursery, begin, spec, cargo)
    shares.taste(tasted.problem, tasted.spoilt)
    return bool(tasted.spoilt or tasted.problem)


def _preload(cache: ShipCache) -> None:
    assert cache.payload is not None, "nothing was shipped"
    packages = _packages(cache.payload.modules) | cache.learnt.imported
    forkserver.with_server(lambda server: server.preload(packages))


def _ship(
    cargo: Cargo, previous: shipping.Payload | None, *, within: int | None, stands: dict[int, Any] | None = None
) -> shipping.Payload:
    found = settings.collect()
    try:
        cargo.settings = settings.Carrier(found)
        return shipping.ship(cargo, previous, within=within, stands=stands)
    except shipping.TooLarge:
        raise
    except Exception:  # noqa: BLE001 - whatever a user's variable raises when it is pickled
        # settings are a help and must not stand in the way
        cargo.settings = settings.Carrier(settings.scalars(found))
        return shipping.ship(cargo, previous, within=within, stands=stands)


def _forking(cargo: Cargo, specs: list[WorkerSpec], context: Any, cache: ShipCache) -> ProcessPool:
    cargo.settings = None  # a forked worker has them
    by_name = [spec.by_name() for spec in specs]
    nursery, begin, shares = ContextNursery(context, cargo), BeginFrame(None, None, None, adopted=False), cache.shares
    cargo.stands = ()
    if shares.survey(cargo, len(specs)):
        shares.obey(cache.learnt)
        cargo.stands = shares.by_place()
        if cargo.stands and not shares.tasted and shares.mode == "auto":
            _taste(shares, nursery, begin, by_name[0], cargo)
            cargo.stands = shares.by_place()
    return ProcessPool(nursery, by_name, begin, cache.learnt)


def _fork_is_safe() -> bool:
    from unjam.pools.audit import fork_now  # noqa: PLC0415 - only when something cannot be sent

    return fork_now().safe


def _fall_back(cargo: Cargo, specs: list[WorkerSpec], problem: CannotShipError, cache: ShipCache) -> ProcessPool:
    from unjam.pools.audit import fork_now  # noqa: PLC0415 - only when something cannot be sent

    verdict = fork_now()
    if "fork" not in multiprocessing.get_all_start_methods() or not verdict.safe:
        reasons = "; ".join(verdict.reasons) or "this system cannot fork"
        raise CannotShipError(
            f"{problem}\n  forking instead is not safe now: {reasons}", path=problem.path, type_name=problem.type_name
        ) from problem.__cause__
    _tell_once(
        problem.path,
        "%s (%s) cannot be sent to a worker, so the workers are forked from this process; fork was found safe now",
        problem.path,
        problem.type_name,
    )
    return _forking(cargo, specs, multiprocessing.get_context("fork"), cache)


def _cannot_ship(cargo: Cargo, error: BaseException, method: str | None) -> CannotShipError:
    from unjam.worker.unshippable import find_culprit  # noqa: PLC0415 - only when something cannot be sent

    for name in ("dataset", "collate_fn", "worker_init_fn", "collate_additions"):
        culprit = find_culprit(name, getattr(cargo, name), _attempt)
        if culprit is not None:
            how = "" if method is None else f" by {method}"
            text = (
                f"{culprit.path} cannot be sent to a worker{how}: it is a {culprit.type_name}\n"
                f"  {culprit.reason}\n"
                f"help: make it in the worker: unjam.per_worker(what opens it, its arguments) in place of {culprit.path}; or open or "
                f"create it on first use in __getitem__; or pass multiprocessing_context='fork'"
            )
            problem = CannotShipError(text, path=culprit.path, type_name=culprit.type_name)
            problem.__cause__ = error
            return problem
    problem = CannotShipError(
        f"the dataset cannot be sent to a worker: {type(error).__name__}: {error}\n"
        "help: pass multiprocessing_context='fork', or make what is missing importable in another process",
        path="the dataset",
        type_name=type(error).__name__,
    )
    problem.__cause__ = error
    return problem


def _attempt(part: object) -> None:
    """Send and rebuild, here: some things can be pickled but not unpickled."""
    payload = shipping.ship(part)
    shipping.receive(payload.fd, payload.manifest, [os.dup(fd) for fd in payload.extra_fds])


def _room() -> int | None:
    """How large a payload may be: a second copy of the dataset's arrays, and the workers need memory too."""
    left = available_memory()
    return None if left is None else max(1 << 30, int(left * LARGEST_SHARE))


def _packages(modules: frozenset[str]) -> set[str]:
    """The installed packages among the modules that a payload refers to."""
    return {top for top in {name.partition(".")[0] for name in modules} if _installed(top)}


@functools.cache
def _installed(package: str) -> bool:
    if package in ("__main__", "__mp_main__", "builtins", "unjam", ""):
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return False
    origin = None if spec is None else spec.origin
    return origin is not None and settings.is_installed(origin)


def _tell_once(key: str, text: str, *values: Any) -> None:
    if key not in _told:
        _told.add(key)
        log.warning(text, *values)


@functools.cache
def _at_exit_once() -> None:
    atexit.register(_at_exit)


def _at_exit() -> None:
    close_all()
    forkserver.shut_down()
