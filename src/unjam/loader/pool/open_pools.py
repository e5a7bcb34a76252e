"""Every open process pool of this process."""

from __future__ import annotations

import weakref
from typing import Protocol


class Closable(Protocol):
    """A pool, as far as this file needs it."""

    def close(self) -> None:
        """End its workers."""

    def forget(self) -> None:
        """Close this process's copies of its descriptors, and nothing else."""


open_pools: weakref.WeakSet[Closable] = weakref.WeakSet()


def forget_all() -> None:
    """In a forked worker: close the parent's ends of every pool's channels."""
    for pool in list(open_pools):
        pool.forget()


def close_all() -> None:
    """At interpreter exit: end all workers."""
    for pool in list(open_pools):
        pool.close()
