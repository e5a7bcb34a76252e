"""The loader: the drop-in `DataLoader`, its driver in the training process, its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unjam.loader.dataloader import DataLoader

__all__ = ["DataLoader"]


def __getattr__(name: str) -> Any:
    # imported on first use: torch takes a second to import, and not all of this package needs it
    if name == "DataLoader":
        from unjam.loader.dataloader import DataLoader  # noqa: PLC0415 - see above

        return DataLoader
    raise AttributeError(f"module 'unjam.loader' has no attribute {name!r}")
