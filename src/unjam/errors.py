"""unjam's own exceptions.

    Exception
    +-- UnjamError
        +-- CannotShipError      TypeError     something in the dataset means nothing in another process
        +-- CannotStartError     RuntimeError  the system would not start a worker
        +-- WorkerDiedError      RuntimeError  a worker's process is gone
        +-- LoaderTimeoutError   RuntimeError  no batch within the user's own `timeout`

What user code raises keeps its own type and is none of these. They also are what torch raises in the same place, so
that `except RuntimeError` goes on working.
"""

from __future__ import annotations


class UnjamError(Exception):
    """Any error that unjam itself raises."""


class CannotShipError(UnjamError, TypeError):
    """Something in the dataset cannot be sent to a worker; `path` says where it hangs."""

    def __init__(self, text: str, *, path: str = "", type_name: str = "") -> None:
        super().__init__(text)
        self.path = path
        self.type_name = type_name


class CannotStartError(UnjamError, RuntimeError):
    """A worker could not be started."""


class WorkerDiedError(UnjamError, RuntimeError):
    """A worker's process is gone without a goodbye."""


class LoaderTimeoutError(UnjamError, RuntimeError):
    """No batch came within the loader's `timeout`."""
