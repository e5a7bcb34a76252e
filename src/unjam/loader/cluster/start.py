"""Opens a pool on a cluster, and finds out why a dataset cannot be rebuilt there."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
from typing import Any

from unjam.deadlines import CLOSE_NODE
from unjam.errors import CannotShipError
from unjam.loader.cluster import ray_cluster
from unjam.loader.cluster.cluster_pool import ClusterPool
from unjam.loader.pool.open_pools import close_all
from unjam.loader.pool.start import PayloadCache, open_pool
from unjam.loader.ray_pool import RayPool
from unjam.loader.worker.spec import WorkerInput, WorkerSpec


def open_cluster_pool(
    settings: RayPool,
    worker_input: WorkerInput,
    specs: list[WorkerSpec],
    context: Any,
    cache: PayloadCache,
    here: int,
    *,
    moves: bool,
) -> ClusterPool:
    """Return a pool with the first `here` workers on this machine and the others on the cluster; nothing has started yet."""
    ray = ray_cluster.connect(settings)
    _close_before_ray()
    shipment, stored = ray_cluster.ship_there(ray, worker_input, cache)
    local = open_pool(worker_input, specs, context, cache) if here else None
    cluster = ray_cluster.RayCluster(ray, settings, shipment, stored)
    return ClusterPool(cluster, specs, cache.reports, settings.patience, local, here, moves=moves)


@functools.cache
def _close_before_ray() -> None:
    """At interpreter exit, end our actors while Ray still works: what was registered last runs first."""
    atexit.register(close_all)


def room(settings: RayPool) -> int:
    """How many workers the cluster has processors for, free or not; this rank's part of it."""
    ray = ray_cluster.connect(settings)
    ranks = int(os.environ.get("WORLD_SIZE", "1") or 1)
    return max(1, int(ray.cluster_resources().get("CPU", 0.0) / settings.cpus) // max(1, ranks))


def why_not_there(
    settings: RayPool, worker_input: WorkerInput, specs: list[WorkerSpec], cache: PayloadCache, error: BaseException
) -> CannotShipError:
    """A worker could not rebuild the dataset: return the error that names the part and the node, found by trying each there."""
    ray = ray_cluster.connect(settings)
    shipment, stored = ray_cluster.ship_there(ray, worker_input, cache)
    cluster = ray_cluster.RayCluster(ray, settings, shipment, stored)
    nodes = cluster.nodes()
    if not nodes:
        return CannotShipError(f"the dataset cannot be rebuilt on the cluster: {type(error).__name__}: {error}")
    agent = cluster.try_here(nodes[0], [dataclasses.replace(specs[0], mark=None)])
    try:
        return ray_cluster.cannot_travel(worker_input, error, ray_cluster.rebuilds_on(agent), nodes[0].name)
    finally:
        agent.close(CLOSE_NODE.seconds)
