"""Where the workers of a loader run: the values of `pool`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

OPTION_TEXT = (
    'where the workers run: "processes" (default), on this machine; "ray", on the nodes of a Ray cluster; "ray:64", 64 workers '
    "on the cluster, regardless of `num_workers`; or an `unjam.RayPool`, which specifies the cluster, the number of workers and "
    "the resources of each."
)
COMMAND_TEXT = (
    "Where the workers run: processes (on this machine), ray (on a Ray cluster) or ray:64 (64 workers on the cluster)."
)


class PoolSpec:
    """Where the workers of a loader run.

    opener: the module that opens such a pool, imported when a loader needs it; see `pool.pool_request.PoolOpener`.
    prefetch_factor: the default for such workers.
    """

    __slots__ = ()
    opener: ClassVar[str]
    prefetch_factor: ClassVar[int] = 2

    def count(self, num_workers: int) -> tuple[int, int]:
        """Return how many workers run on this machine, and how many in all."""
        raise NotImplementedError


class Processes(PoolSpec):
    """Workers are processes of this machine."""

    __slots__ = ()
    opener = "unjam.loader.pool.open_pool"

    def count(self, num_workers: int) -> tuple[int, int]:
        """Return `num_workers` twice."""
        return num_workers, num_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPool(PoolSpec):
    """Workers on the nodes of a Ray cluster, for `DataLoader(pool=...)`.

    workers: how many run on the cluster, in addition to `num_workers` on this machine. None: all of
        `num_workers` run on the cluster.
    local_workers: False: none run on this machine, regardless of `num_workers`.
    address: the cluster's address, in any form that `ray.init` accepts. None: the cluster that
        this program already uses, or the one that `RAY_ADDRESS` names, or else one on this machine.
    cpus: processors that each worker reserves on its node.
    resources: other Ray resources that each worker takes, by name.
    placement: "spread" (the same number on each node), "pack" (few nodes), or a Ray placement group.
    runtime_env: the Ray runtime environment of the actors: packages to install, a working directory,
        variables.
    patience: seconds to wait for a node with free processors before ClusterError is raised.
    """

    opener: ClassVar[str] = "unjam.loader.cluster.open_pool"
    # batches from another machine take longer to arrive
    prefetch_factor: ClassVar[int] = 8

    workers: int | None = None
    local_workers: bool = True
    address: str | None = None
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Any = "spread"
    runtime_env: Mapping[str, Any] | None = None
    patience: float = 60.0

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        workers: Any = self.workers
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise ValueError(f"workers should be a whole number of at least 1 or None, but got workers={workers!r}")
        if not self.local_workers and workers is None:
            raise ValueError("local_workers=False needs a number of workers")
        for name in ("cpus", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name} should be a positive number, but got {name}={value!r}")
        if isinstance(self.placement, str) and self.placement not in ("spread", "pack"):
            raise ValueError(
                f"placement should be 'spread', 'pack' or a placement group, but got placement={self.placement!r}"
            )

    def count(self, num_workers: int) -> tuple[int, int]:
        """Return how many workers run on this machine, and how many in all."""
        if self.workers is None:
            return 0, num_workers
        here = num_workers if self.local_workers else 0
        return here, here + self.workers


def parse_pool(given: Any) -> PoolSpec:
    """Return what a value of `pool` means."""
    if given is None or given == "processes":
        return Processes()
    if given == "ray":
        return RayPool()
    if isinstance(given, str) and given.startswith("ray:") and given[4:].isdecimal():
        return RayPool(workers=int(given[4:]), local_workers=False)
    if isinstance(given, PoolSpec):
        return given
    raise ValueError(f"pool should be 'processes', 'ray', 'ray:8' or an unjam.RayPool, but got pool={given!r}")
