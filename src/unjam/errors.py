"""unjam's own exceptions, and the record of a failed sample.

    Exception
    +-- UnjamError
        +-- CannotShipError      TypeError      something in the dataset means nothing in another process
        +-- CannotStartError     RuntimeError   the system would not start a worker
        +-- CannotCollateError   RuntimeError,  the samples of a batch do not fit together
        |                        TypeError
        +-- WorkerDiedError      RuntimeError   a worker's process is gone
        +-- SampleTimeoutError   RuntimeError,  a sample took longer than `sample_timeout`
        |                        TimeoutError
        +-- LoaderTimeoutError   RuntimeError   no batch within the user's own `timeout`
        +-- TooManyErrorsError   RuntimeError   more samples failed than `max_errors` allows

What user code raises keeps its own type and is none of these. They also are what torch raises in the same place, so
that `except RuntimeError` goes on working. Each carries its `incident`: everything known, to and from JSON.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any


class UnjamError(Exception):
    """Any error that unjam itself raises."""

    # an `unjam.loader.incident.Incident`, where there is one
    incident: Any = None


class CannotShipError(UnjamError, TypeError):
    """Something in the dataset cannot be sent to a worker; `path` says where it hangs."""

    def __init__(self, text: str, *, path: str = "", type_name: str = "", cure: str = "") -> None:
        super().__init__(text)
        self.path = path
        self.type_name = type_name
        self.cure = cure


class CannotStartError(UnjamError, RuntimeError):
    """A worker could not be started."""


class CannotCollateError(UnjamError, RuntimeError, TypeError):
    """The samples of a batch do not fit together; the message names the one that is different."""


class WorkerDiedError(UnjamError, RuntimeError):
    """A worker's process is gone without a goodbye."""


class SampleTimeoutError(UnjamError, RuntimeError, TimeoutError):
    """A sample took longer than `sample_timeout`; its worker was stopped, and `incident.stack` is where it was."""


class LoaderTimeoutError(UnjamError, RuntimeError):
    """No batch came within the loader's `timeout`."""


class LockTimeoutError(UnjamError, TimeoutError):
    """An `interprocess_lock` was not free in time; the text names its holder."""


class TooManyErrorsError(UnjamError, RuntimeError):
    """More samples failed than `max_errors` allows, or all of them; the message groups them by cause."""

    def __init__(self, text: str, errors: tuple[SampleError, ...] = ()) -> None:
        super().__init__(text)
        self.errors = errors


@dataclass(frozen=True, slots=True)
class SampleError:
    """One failure: a record, not an exception. `on_error` gets it, `loader.errors` keeps it.

    index: what the sampler gave for this sample; None for an iterable dataset, and where the whole batch failed.
    key: what the dataset itself calls the sample (a path, an id), where it exposes that.
    batch: the batch's number in its epoch.
    worker: the worker's number; None for `num_workers=0`.
    stage: "getitem", "iter", "collate", "pickle" or "init".
    seconds: how long that stage had taken.
    tries: how often the sample was tried.
    yielded: for an iterable dataset, how many samples that worker had yielded before.
    indices: where the whole batch failed, what was in it.
    decision: what was done about it; empty while it is being decided.
    replacement: the index that took its place.
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
    """What an exception says; a broken `__str__` must not hide it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code
        return "<no text: its __str__ raised>"


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
    """An index in words; a number of any library as a number."""
    text = str(index) if isinstance(index, numbers.Integral) else repr(index)
    return text if len(text) <= 80 else text[:77] + "..."
