"""Every open process pool of this process."""

from __future__ import annotations

import weakref
from typing import Protocol


class Closable(Protocol):
    """A pool that can be closed."""

    def close(self) -> None:
        """Stop its workers."""

    def forget(self) -> None:
        """Only close this process's copies of its descriptors."""


open_pools: weakref.WeakSet[Closable] = weakref.WeakSet()


def forget_all() -> None:
    """Close the parent's ends of every pool's channels; for a forked worker."""
    for pool in list(open_pools):
        pool.forget()


def close_all() -> None:
    """Stop all workers; for interpreter exit."""
    for pool in list(open_pools):
        pool.close()
