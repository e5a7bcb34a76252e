"""Every open pool of this process: a `ProcessPool` or a `ClusterPool`."""

from __future__ import annotations

import weakref
from typing import Any

living: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_all() -> None:
    """Close the parent's ends of every pool's channels; for a forked worker."""
    for pool in list(living):
        pool.forget()


def close_all() -> None:
    """Stop all workers; for interpreter exit."""
    for pool in list(living):
        pool.close()
