"""The options that are unjam's own: what they may be, and a clear word where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from unjam.errors import SampleError
from unjam.loader.engine.policy import Decision

OnError = Literal["raise", "skip", "replace", "retry"] | Callable[[SampleError], str]

# as in the loader's signature, for those who must know them without importing torch; a test compares
DEFAULTS: dict[str, Any] = {
    "on_error": "raise", "retries": 3, "max_errors": None, "error_log": None, "sample_timeout": None, "warn_after": 30.0,
    "on_worker_death": "restart", "max_restarts": 1000, "worker_threads": 1, "memory_budget": None,
    "profile": False,
}  # fmt: skip


class AutoWorkers(int):
    """A number of workers that the loader chose and may change. Whoever makes a loader anew with it gets one that does."""

    __slots__ = ()


_WORDS = tuple(decision.value for decision in Decision)


def check_options(
    *,
    on_error: Any,
    retries: Any,
    max_errors: Any,
    error_log: Any,
    sample_timeout: Any,
    warn_after: Any,
    on_worker_death: Any,
    max_restarts: Any,
    worker_threads: Any,
    memory_budget: Any,
    profile: Any,
) -> None:
    """Raise ValueError or TypeError for what cannot be meant, when the loader is made and not an hour later."""
    if not callable(on_error) and on_error not in _WORDS:
        raise ValueError(f"on_error should be one of {', '.join(_WORDS)} or a function, but got on_error={on_error!r}")
    _whole("retries", retries, least=0)
    _whole("max_restarts", max_restarts, least=0)
    if max_errors is not None:
        _fraction_or_count(max_errors)
    for name, value in (("sample_timeout", sample_timeout), ("warn_after", warn_after)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ValueError(f"{name} should be a positive number of seconds or None, but got {name}={value!r}")
    if on_worker_death not in ("restart", "raise"):
        raise ValueError(f"on_worker_death should be 'restart' or 'raise', but got on_worker_death={on_worker_death!r}")
    if worker_threads is not None:
        _whole("worker_threads", worker_threads, least=1)
    if memory_budget is not None:
        _whole("memory_budget", memory_budget, least=1)
    if not isinstance(profile, bool):
        raise TypeError(f"profile should be True or False, but got profile={profile!r}")
    if error_log is not None:
        folder = os.path.dirname(os.path.abspath(os.fspath(error_log)))
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"error_log={os.fspath(error_log)!r}: the folder {folder} does not exist")


def _whole(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} should be a whole number of at least {least}, but got {name}={value!r}")


def _fraction_or_count(value: Any) -> None:
    if isinstance(value, float) and 0 <= value <= 1:
        return
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return
    raise ValueError(
        f"max_errors should be a count (10) or a fraction of the epoch (0.01), but got max_errors={value!r}"
    )
