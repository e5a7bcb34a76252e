"""unjam: a torch DataLoader that cannot freeze silently.

from unjam import DataLoader
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unjam.version import __version__

if TYPE_CHECKING:
    from unjam.doctor.run.install import install, uninstall
    from unjam.errors import (
        CannotCollateError,
        CannotResumeError,
        CannotShipError,
        CannotStartError,
        ClusterError,
        DeviceError,
        LoaderTimeoutError,
        LockTimeoutError,
        SampleError,
        SampleTimeoutError,
        TooManyErrorsError,
        UnjamError,
        UnjamWarning,
        WorkerDiedError,
    )
    from unjam.loader.checkpoint.elastic_sampler import ElasticSampler
    from unjam.loader.dataloader import DataLoader
    from unjam.loader.failures.incident import Incident
    from unjam.loader.options import OnError
    from unjam.loader.pool_spec import RayPool
    from unjam.shared.arrays import SharedArray
    from unjam.shared.buffer import GoneError
    from unjam.shared.dicts import SharedDict
    from unjam.shared.lists import SharedList
    from unjam.shared.locks import InterprocessLock, interprocess_lock
    from unjam.shared.mapped import Mapped, MappedDataset, mapped
    from unjam.shared.per_worker import PerWorker, per_worker
    from unjam.shared.share import share
    from unjam.statistics import (
        Auto,
        AutoStep,
        Copies,
        LineTime,
        NodeShare,
        Profile,
        SlowSample,
        StageTimes,
        Stalls,
        Statistics,
        TransformTime,
    )

# where each name is defined; imported on first use, so that `import unjam` itself costs and starts nothing
_HOMES = {
    "unjam.doctor.run.install": ("install", "uninstall"),
    "unjam.loader.checkpoint.elastic_sampler": ("ElasticSampler",),
    "unjam.errors": (
        "CannotCollateError", "CannotResumeError", "CannotShipError", "CannotStartError", "ClusterError", "DeviceError", "LoaderTimeoutError", "LockTimeoutError",
        "SampleError", "SampleTimeoutError", "TooManyErrorsError", "UnjamError", "UnjamWarning", "WorkerDiedError",
    ),
    "unjam.loader.dataloader": ("DataLoader",),
    "unjam.loader.failures.incident": ("Incident",),
    "unjam.loader.options": ("OnError",),
    "unjam.loader.pool_spec": ("RayPool",),
    "unjam.shared.arrays": ("SharedArray",),
    "unjam.shared.buffer": ("GoneError",),
    "unjam.shared.dicts": ("SharedDict",),
    "unjam.shared.lists": ("SharedList",),
    "unjam.shared.locks": ("InterprocessLock", "interprocess_lock"),
    "unjam.shared.mapped": ("Mapped", "MappedDataset", "mapped"),
    "unjam.shared.per_worker": ("PerWorker", "per_worker"),
    "unjam.shared.share": ("share",),
    "unjam.statistics": (
        "Auto", "AutoStep", "Copies", "LineTime", "NodeShare", "Profile", "SlowSample", "StageTimes", "Stalls", "Statistics", "TransformTime",
    ),
}  # fmt: skip
__all__ = [
    "Auto",
    "AutoStep",
    "CannotCollateError",
    "CannotResumeError",
    "CannotShipError",
    "CannotStartError",
    "ClusterError",
    "Copies",
    "DataLoader",
    "DeviceError",
    "ElasticSampler",
    "GoneError",
    "Incident",
    "InterprocessLock",
    "LineTime",
    "LoaderTimeoutError",
    "LockTimeoutError",
    "Mapped",
    "MappedDataset",
    "NodeShare",
    "OnError",
    "PerWorker",
    "Profile",
    "RayPool",
    "SampleError",
    "SampleTimeoutError",
    "SharedArray",
    "SharedDict",
    "SharedList",
    "SlowSample",
    "StageTimes",
    "Stalls",
    "Statistics",
    "TooManyErrorsError",
    "TransformTime",
    "UnjamError",
    "UnjamWarning",
    "WorkerDiedError",
    "__version__",
    "install",
    "interprocess_lock",
    "mapped",
    "per_worker",
    "share",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'unjam' has no attribute {name!r}")
    import importlib  # noqa: PLC0415 - on first use

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
