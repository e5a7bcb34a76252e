"""unjam: a torch DataLoader that cannot freeze silently.

from unjam import DataLoader
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unjam.loader import DataLoader

__version__ = "0.1.0"
__all__ = ["DataLoader", "__version__"]


def __getattr__(name: str) -> Any:
    # on first use, so that `import unjam` itself costs and starts nothing
    if name == "DataLoader":
        from unjam.loader import DataLoader  # noqa: PLC0415 - see above

        return DataLoader
    raise AttributeError(f"module 'unjam' has no attribute {name!r}")
