"""The error for a worker input that cannot be sent: which part it is, and what to do about it."""

from __future__ import annotations

import os

from unjam.errors import CannotShipError
from unjam.loader.pool.shared_handles import shared_handles
from unjam.loader.ship import shipping
from unjam.loader.worker.spec import WorkerInput


def cannot_ship(worker_input: WorkerInput, error: BaseException, method: str | None) -> CannotShipError:
    """Return the error that names the part of the worker input that cannot be sent, and what to do about it.

    `method`: the user's start method, if there is one.
    """
    from unjam.loader.ship.pickle_culprit import find_culprit  # noqa: PLC0415 - only when something cannot be sent

    for name in ("dataset", "collate_fn", "worker_init_fn", "collate_additions"):
        culprit = find_culprit(name, getattr(worker_input, name), attempt)
        if culprit is not None:
            how = "" if method is None else f" by {method}"
            handles = [one for one in shared_handles(worker_input) if _is_below(culprit.path, one.path)]
            path, type_name = (handles[0].path, handles[0].type_name) if handles else (culprit.path, culprit.type_name)
            text = f"{path} cannot be sent to a worker{how}: its type is {type_name}\n  {culprit.reason}"
            if culprit.between_processes:
                cure = (
                    f"help: {path} is shared between processes: create it with multiprocessing.get_context('spawn'), or pass "
                    "multiprocessing_context='fork'"
                )
            else:
                cure = (
                    f"help: create it in the worker: replace {path} with unjam.per_worker(function, *arguments), or create it on "
                    "first use in __getitem__, or pass multiprocessing_context='fork'"
                )
            return _problem(text, cure, path, type_name, error)
    return _problem(
        f"the dataset cannot be sent to a worker: {type(error).__name__}: {error}",
        "help: pass multiprocessing_context='fork', or make sure that another process can import what is missing",
        "the dataset",
        type(error).__name__,
        error,
    )


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}.", f"{top}[", f"{top} "))


def _problem(text: str, cure: str, path: str, type_name: str, error: BaseException) -> CannotShipError:
    problem = CannotShipError(f"{text}\n{cure}", path=path, type_name=type_name, cure=cure)
    # the error may be kept, and its frames would keep all their objects alive
    problem.__cause__ = error.with_traceback(None)
    return problem


def attempt(part: object) -> None:
    """Send and rebuild in this process: some objects can be pickled but not unpickled."""
    payload = shipping.ship(part)
    shipping.receive(payload.fd, payload.manifest, [os.dup(fd) for fd in payload.extra_fds], here=True)
