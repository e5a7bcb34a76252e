"""unjam: a torch DataLoader that cannot freeze silently.

from unjam import DataLoader
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unjam.errors import (
        CannotCollateError,
        CannotShipError,
        CannotStartError,
        LoaderTimeoutError,
        LockTimeoutError,
        SampleError,
        SampleTimeoutError,
        TooManyErrorsError,
        UnjamError,
        WorkerDiedError,
    )
    from unjam.loader.dataloader import DataLoader
    from unjam.loader.incident import Incident
    from unjam.shared.arrays import SharedArray
    from unjam.shared.buffer import GoneError
    from unjam.shared.dicts import SharedDict
    from unjam.shared.lists import SharedList
    from unjam.shared.locks import interprocess_lock
    from unjam.shared.mapped import MappedDataset, mapped
    from unjam.shared.per_worker import per_worker
    from unjam.shared.share import share
    from unjam.statistics import Statistics

__version__ = "0.1.0"
__all__ = [
    "CannotCollateError",
    "CannotShipError",
    "CannotStartError",
    "DataLoader",
    "GoneError",
    "Incident",
    "LoaderTimeoutError",
    "LockTimeoutError",
    "MappedDataset",
    "SampleError",
    "SampleTimeoutError",
    "SharedArray",
    "SharedDict",
    "SharedList",
    "Statistics",
    "TooManyErrorsError",
    "UnjamError",
    "WorkerDiedError",
    "__version__",
    "interprocess_lock",
    "mapped",
    "per_worker",
    "share",
]
_ELSEWHERE = {
    "DataLoader": "unjam.loader.dataloader", "Incident": "unjam.loader.incident", "Statistics": "unjam.statistics",
    "SharedArray": "unjam.shared.arrays", "GoneError": "unjam.shared.buffer", "SharedDict": "unjam.shared.dicts",
    "per_worker": "unjam.shared.per_worker", "SharedList": "unjam.shared.lists", "interprocess_lock": "unjam.shared.locks",
    "MappedDataset": "unjam.shared.mapped", "mapped": "unjam.shared.mapped", "share": "unjam.shared.share",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # on first use, so that `import unjam` itself costs and starts nothing
    if name in __all__:
        import importlib  # noqa: PLC0415 - see above

        return getattr(importlib.import_module(_ELSEWHERE.get(name, "unjam.errors")), name)
    raise AttributeError(f"module 'unjam' has no attribute {name!r}")
