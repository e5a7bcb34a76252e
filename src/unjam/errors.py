"""unjam's own exceptions, and the record of a failed sample.

    Exception
    +-- UnjamError
        +-- CannotShipError      TypeError      a part of the dataset cannot be sent to a worker
        +-- CannotStartError     RuntimeError   a worker could not be started
        +-- CannotCollateError   RuntimeError,  the samples of a batch do not fit together
        |                        TypeError
        +-- WorkerDiedError      RuntimeError   a worker process ended unexpectedly
        +-- SampleTimeoutError   RuntimeError,  a sample took longer than `sample_timeout`
        |                        TimeoutError
        +-- LoaderTimeoutError   RuntimeError   no batch arrived within the loader's `timeout`
        +-- LockTimeoutError     TimeoutError   an `interprocess_lock` was not free in time
        +-- CannotResumeError    RuntimeError   a state cannot be saved, or a loader cannot resume from it
        +-- DeviceError          RuntimeError   a batch could not be created on `device`
        +-- ClusterError         RuntimeError   the cluster of `pool` has no room for a worker
        +-- TooManyErrorsError   RuntimeError   more samples failed than `max_errors` allows

An exception that user code raises keeps its own type. The classes above also inherit from the type
that torch raises in the same place, so `except RuntimeError` keeps working. Their `incident` holds
everything that is known about the failure; it converts to and from JSON.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any


class UnjamError(Exception):
    """Any error that unjam itself raises."""

    # an `unjam.loader.failures.incident.Incident`, or None
    incident: Any = None


class UnjamWarning(UserWarning):
    """The category of all Python warnings from unjam, for warning filters."""


class CannotShipError(UnjamError, TypeError):
    """A part of the dataset cannot be sent to a worker.

    path: where the dataset holds that part. type_name: its type. cure: how to fix it.
    """

    def __init__(self, text: str, *, path: str = "", type_name: str = "", cure: str = "") -> None:
        super().__init__(text)
        self.path = path
        self.type_name = type_name
        self.cure = cure


class CannotStartError(UnjamError, RuntimeError):
    """A worker could not be started."""


class CannotCollateError(UnjamError, RuntimeError, TypeError):
    """The samples of a batch do not fit together; the message names the sample that differs."""


class WorkerDiedError(UnjamError, RuntimeError):
    """A worker process ended unexpectedly."""


class SampleTimeoutError(UnjamError, RuntimeError, TimeoutError):
    """A sample took longer than `sample_timeout`, and its worker was stopped.

    `incident.stack` is the worker's stack at that moment.
    """


class CannotResumeError(UnjamError, RuntimeError):
    """A state cannot be saved, or a loader cannot resume from it."""


class ClusterError(UnjamError, RuntimeError):
    """The cluster of `pool` cannot be reached, is gone, or has no room for a worker."""


class DeviceError(UnjamError, RuntimeError):
    """The device does not exist, or a batch could not be created on it; the message names the batch."""


class LoaderTimeoutError(UnjamError, RuntimeError):
    """No batch arrived within the loader's `timeout`."""


class LockTimeoutError(UnjamError, TimeoutError):
    """An `interprocess_lock` was not free in time; the message names its holder."""


class TooManyErrorsError(UnjamError, RuntimeError):
    """More samples failed than `max_errors` allows, or all samples failed.

    The message groups the failures by cause; `errors` lists them.
    """

    def __init__(self, text: str, errors: tuple[SampleError, ...] = ()) -> None:
        super().__init__(text)
        self.errors = errors


@dataclass(frozen=True, slots=True)
class SampleError:
    """One failed sample or batch: a record, not an exception.

    `on_error` receives it, and `loader.errors` keeps it.

    index: the index that the sampler gave; None for an iterable dataset, and if the batch failed.
    key: the dataset's own name for the sample (a path, an id), where the dataset exposes one.
    batch: the number of the batch in its epoch.
    worker: the number of the worker; None for `num_workers=0`.
    stage: "getitem", "iter", "collate", "pickle" or "init".
    seconds: how long that stage had run.
    tries: how often the sample was tried.
    yielded: for an iterable dataset, how many samples that worker had yielded before.
    indices: if the whole batch failed, the indices of the batch.
    pid: the process in which it failed.
    decision: what was done about the failure; empty until that is decided.
    replacement: the index of the sample that took its place.
    note: a remark about how the failure was handled.
    """

    index: Any
    batch: int | None
    worker: int | None
    stage: str
    seconds: float
    exception: BaseException
    key: str | None = None
    tries: int = 1
    yielded: int | None = None
    indices: tuple[Any, ...] = ()
    pid: int | None = None
    decision: str = ""
    replacement: Any = None
    note: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {type(self.exception).__name__}: {words_of(self.exception)}"

    @property
    def place(self) -> str:
        """Which sample, in words: `sample 37 (batch 4, worker 1)`."""
        return place(self.index, self.batch, self.worker, yielded=self.yielded, indices=self.indices)


def words_of(error: BaseException) -> str:
    """The message of an exception. A broken `__str__` must not hide the exception itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code
        return "<no text: its __str__ raised>"


def type_name(kind: type) -> str:
    """The full name of a class; for a built-in one, the short name."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def place(
    index: Any,
    batch: int | None,
    worker: int | None,
    *,
    yielded: int | None = None,
    indices: tuple[Any, ...] = (),
) -> str:
    """Which sample, in words: `sample 37 (batch 4, worker 1)`."""
    who = "this process" if worker is None else f"worker {worker}"
    where = who if batch is None else f"batch {batch}, {who}"
    if yielded is not None:
        return f"sample {yielded} of its iterable ({where})"
    if index is not None:
        return f"sample {short(index)} ({where})"
    if indices:
        return f"samples {', '.join(short(one) for one in indices[:16])}{' …' if len(indices) > 16 else ''} ({where})"
    return where


def short(index: Any) -> str:
    """An index as short text; integers of any library look like Python's."""
    text = str(index) if isinstance(index, numbers.Integral) else repr(index)
    return text if len(text) <= 80 else text[:77] + "..."
