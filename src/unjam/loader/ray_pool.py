"""Where workers run that are not processes of this machine: the settings of `pool`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# `prefetch_factor` if none is given: a batch of another machine is longer on its way
DEPTH_ON_CLUSTER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RayPool:
    """Workers on the nodes of a Ray cluster, for `DataLoader(pool=...)`.

    workers: how many there are on the cluster, beside `num_workers` on this machine. None: all of
        `num_workers` are on the cluster.
    beside: False: there are none on this machine, whatever `num_workers` says.
    address: of the cluster, as `ray.init` takes it. None: the cluster that this program uses already, or
        the one that `RAY_ADDRESS` names, or else one on this machine.
    cpus: processors of its node that each worker takes.
    resources: other resources of Ray that each worker takes, by name.
    placement: "spread" (the same number on each node), "pack" (few nodes), or a placement group of Ray.
    runtime_env: of Ray, for the actors: packages to install, a working directory, variables.
    patience: seconds to wait for a node with free processors before it is an error.
    """

    workers: int | None = None
    beside: bool = True
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
        if not self.beside and workers is None:
            raise ValueError("beside=False needs a number of workers")
        for name in ("cpus", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ValueError(f"{name} should be a positive number, but got {name}={value!r}")
        if isinstance(self.placement, str) and self.placement not in ("spread", "pack"):
            raise ValueError(
                f"placement should be 'spread', 'pack' or a placement group, but got placement={self.placement!r}"
            )


def pool_of(given: Any) -> RayPool | None:
    """Return the settings that `pool` means; None: processes of this machine."""
    if given is None or given == "processes":
        return None
    if given == "ray":
        return RayPool()
    if isinstance(given, str) and given.startswith("ray:") and given[4:].isdecimal():
        return RayPool(workers=int(given[4:]), beside=False)
    if isinstance(given, RayPool):
        return given
    raise ValueError(f"pool should be 'processes', 'ray', 'ray:8' or an unjam.RayPool, but got pool={given!r}")
