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
    from unjam.evidence.incident import Incident
    from unjam.loader import DataLoader
    from unjam.sharing.arrays import SharedArray
    from unjam.sharing.buffer import GoneError
    from unjam.sharing.dicts import SharedDict
    from unjam.sharing.handles import per_worker
    from unjam.sharing.lists import SharedList
    from unjam.sharing.locks import interprocess_lock
    from unjam.sharing.mapped import MappedDataset, mapped
    from unjam.sharing.walking import share
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
    "DataLoader": "unjam.loader", "Incident": "unjam.evidence.incident", "Statistics": "unjam.statistics",
    "SharedArray": "unjam.sharing.arrays", "GoneError": "unjam.sharing.buffer", "SharedDict": "unjam.sharing.dicts",
    "per_worker": "unjam.sharing.handles", "SharedList": "unjam.sharing.lists", "interprocess_lock": "unjam.sharing.locks",
    "MappedDataset": "unjam.sharing.mapped", "mapped": "unjam.sharing.mapped", "share": "unjam.sharing.walking",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # on first use, so that `import unjam` itself costs and starts nothing
    if name in __all__:
        import importlib  # noqa: PLC0415 - see above

        return getattr(importlib.import_module(_ELSEWHERE.get(name, "unjam.errors")), name)
    raise AttributeError(f"module 'unjam' has no attribute {name!r}")
