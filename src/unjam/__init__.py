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
        SampleError,
        SampleTimeoutError,
        TooManyErrorsError,
        UnjamError,
        WorkerDiedError,
    )
    from unjam.evidence.incident import Incident
    from unjam.loader import DataLoader
    from unjam.statistics import Statistics

__version__ = "0.1.0"
__all__ = [
    "CannotCollateError",
    "CannotShipError",
    "CannotStartError",
    "DataLoader",
    "Incident",
    "LoaderTimeoutError",
    "SampleError",
    "SampleTimeoutError",
    "Statistics",
    "TooManyErrorsError",
    "UnjamError",
    "WorkerDiedError",
    "__version__",
]
_ELSEWHERE = {"DataLoader": "unjam.loader", "Incident": "unjam.evidence.incident", "Statistics": "unjam.statistics"}


def __getattr__(name: str) -> Any:
    # on first use, so that `import unjam` itself costs and starts nothing
    if name in __all__:
        import importlib  # noqa: PLC0415 - see above

        return getattr(importlib.import_module(_ELSEWHERE.get(name, "unjam.errors")), name)
    raise AttributeError(f"module 'unjam' has no attribute {name!r}")
