"""The loader's settings that a driver needs."""

from __future__ import annotations

from dataclasses import dataclass

from unjam.loader.engine.policy import Policy


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Plain values: the driver keeps no object of the user's; see NOTE [ The end of an iterator ].

    expected: samples in an epoch, if known. batched: whether the loader makes batches. seed: base
    of the seed of each batch, if each batch has its own; None otherwise.
    """

    policy: Policy = Policy()
    timeout: float = 0
    sample_timeout: float | None = None
    warn_after: float | None = None
    expected: int | None = None
    batched: bool = True
    seed: int | None = None
