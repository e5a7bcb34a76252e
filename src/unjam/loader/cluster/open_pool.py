"""Opens pools on a cluster; see `PoolOpener`."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import re

from unjam.deadlines import NODE_CLOSE
from unjam.errors import CannotShipError
from unjam.loader.cluster import ray_cluster
from unjam.loader.cluster.cluster_pool import ClusterPool
from unjam.loader.cluster.mixed_pool import MixedPool
from unjam.loader.cluster.ray_cluster import Node
from unjam.loader.pool import open_pool as local_pool
from unjam.loader.pool.pool_registry import close_all
from unjam.loader.pool.pool_request import PoolRequest
from unjam.loader.pool.protocol import Pool
from unjam.loader.pool_spec import PoolSpec, RayPool


def open_pool(request: PoolRequest) -> Pool:
    """Return a pool with the first `request.here` workers on this machine and the others on the cluster."""
    settings = _settings(request.spec)
    ray = ray_cluster.connect(settings)
    _close_before_ray()
    shipment, stored = ray_cluster.ship_there(ray, request.worker_input, request.cache)
    local = local_pool.open_pool(request) if request.here else None
    cluster = ray_cluster.RayCluster(ray, settings, shipment, stored)
    reports = request.cache.reports
    remote = ClusterPool(cluster, request.specs, reports, settings.patience, may_move=request.may_move)
    return remote if local is None else MixedPool(local, remote, request.here, reports)


def most_workers(spec: PoolSpec) -> int:
    """Return how many workers the cluster has processors for, free or not: this rank's part of it."""
    settings = _settings(spec)
    if settings.workers:
        return settings.workers
    return ray_cluster.workers_of_rank(ray_cluster.connect(settings), settings)


def open_fallback_pool(request: PoolRequest, error: BaseException) -> Pool:
    """A worker could not rebuild the dataset: raise the error that names the part and the node, found by trying each there."""
    settings = _settings(request.spec)
    ray = ray_cluster.connect(settings)
    shipment, stored = ray_cluster.ship_there(ray, request.worker_input, request.cache)
    cluster = ray_cluster.RayCluster(ray, settings, shipment, stored)
    nodes = cluster.nodes()
    if not nodes:
        raise CannotShipError(
            f"the dataset cannot be rebuilt on the cluster: {type(error).__name__}: {error}"
        ) from error
    node = _named_in(error, nodes) or nodes[0]
    agent = cluster.try_here(node, [dataclasses.replace(request.specs[0], start_at=None)])
    try:
        rebuilds = ray_cluster.rebuilds_on(agent)
        raise ray_cluster.cannot_travel(request.worker_input, error, rebuilds, node.name) from error
    finally:
        agent.close(NODE_CLOSE.seconds)


def _named_in(error: BaseException, nodes: list[Node]) -> Node | None:
    """Return the node that an error names, if it has room."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    return next((one for one in nodes if re.search(rf"on node {re.escape(one.name)}(?![\w.])", notes)), None)


def _settings(spec: PoolSpec) -> RayPool:
    assert isinstance(spec, RayPool), "this module opens pools on Ray"
    return spec


@functools.cache
def _close_before_ray() -> None:
    """At interpreter exit, end our actors while Ray still works: what was registered last runs first."""
    atexit.register(close_all)
