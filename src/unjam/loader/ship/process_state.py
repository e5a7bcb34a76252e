"""Sends the parent's process state to a worker that was not forked from the parent.

A forked worker inherits the state of its parent. A worker of the fork server inherits the state that the
*server* had when it started. This module sends the difference, as far as a dataset can notice it.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import process, resource_tracker
from typing import Any, Literal

import numpy as np
import torch

from unjam.loader.ship import warning_filters
from unjam.system import proc_files, torch_private

Style = Literal["%", "{", "$"]
# parts of the standard library and torch that type checkers do not know
_multiprocessing_tracker: Any = resource_tracker
_deterministic: Any = torch.utils.deterministic


@dataclass(frozen=True, slots=True)
class HandlerPlan:
    """How to recreate one of the root logger's handlers: to a standard stream or to a file."""

    target: str
    level: int
    pattern: str | None
    dates: str | None
    style: Style
    is_file: bool


def tracker_fd() -> int | None:
    """Return the descriptor of multiprocessing's resource tracker, if one runs.

    A worker needs the parent's: its own tracker would unlink shared segments when the worker ends.
    """
    fd: int | None = _multiprocessing_tracker._resource_tracker._fd  # noqa: SLF001 - no public access
    return fd


def use_tracker(fd: int) -> None:
    """Use the parent's resource tracker."""
    _multiprocessing_tracker._resource_tracker._fd = fd  # noqa: SLF001 - as multiprocessing does


def _become_child(worker: int, state: ProcessState) -> None:
    """Make multiprocessing treat this process as a child, because much code checks for that."""
    internals: Any = process
    me: Any = process.BaseProcess(name=f"unjam-worker-{worker}")
    # as BaseProcess._bootstrap does
    me._config = {"authkey": internals.AuthenticationString(state.authkey), "semprefix": "/mp"}  # noqa: SLF001
    me._parent_pid, me._parent_name = state.parent_pid, state.parent_name  # noqa: SLF001
    internals._current_process = me  # noqa: SLF001
    internals._parent_process = internals._ParentProcess(state.parent_name, state.parent_pid, None)  # noqa: SLF001


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _umask() -> int:
    known = proc_files.field("/proc/self/status", "Umask")
    if known:
        return int(known[0], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _log_levels() -> dict[str, int]:
    loggers = {"": logging.getLogger().level}
    for name, logger in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            loggers[name] = logger.level
    return loggers


_STYLES: dict[type, Style] = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


def _log_handlers() -> list[HandlerPlan]:
    plans = []
    for handler in logging.getLogger().handlers:
        formatter = handler.formatter
        pattern = getattr(formatter, "_fmt", None)
        dates = getattr(formatter, "datefmt", None)
        style = _STYLES.get(type(getattr(formatter, "_style", None)), "%")
        if type(handler) is logging.FileHandler:
            plans.append(HandlerPlan(handler.baseFilename, handler.level, pattern, dates, style, is_file=True))
        elif type(handler) is logging.StreamHandler and handler.stream in (sys.stderr, sys.stdout):
            name = "stderr" if handler.stream is sys.stderr else "stdout"
            plans.append(HandlerPlan(name, handler.level, pattern, dates, style, is_file=False))
    return plans


# handlers that we added; a worker forked from a template replaces those of the template
_handlers: list[logging.Handler] = []
# loggers whose level we set; the program may have reset it since the template took over its state
_leveled: set[str] = set()


def _apply_logging(levels: dict[str, int], plans: list[HandlerPlan]) -> None:
    while _handlers:
        logging.getLogger().removeHandler(_handlers.pop())
    for plan in plans:
        handler: logging.Handler
        if plan.is_file:
            handler = logging.FileHandler(plan.target, delay=True)
        else:
            handler = logging.StreamHandler(getattr(sys, plan.target))
        handler.setLevel(plan.level)
        handler.setFormatter(logging.Formatter(plan.pattern, plan.dates, plan.style))
        logging.getLogger().addHandler(handler)
        _handlers.append(handler)
    for name in _leveled - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _leveled.clear()
    _leveled.update(levels)


# torch's settings: what reads each, and what sets it
_TORCH_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda wanted: torch_private.set_deterministic(wanted[0], warn_only=wanted[1]),
    ),
    "fill": (
        lambda: _deterministic.fill_uninitialized_memory,
        lambda wanted: setattr(_deterministic, "fill_uninitialized_memory", wanted),
    ),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
    "sharing": (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    "warn_always": (torch.is_warn_always_enabled, torch.set_warn_always),
    "print": (torch_private.print_options, lambda options: torch.set_printoptions(**options)),
}


def _torch_settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _TORCH_SETTINGS.items()}


def _apply_torch(settings: dict[str, Any]) -> None:
    """Set only what differs, because some of torch's setters import much of torch."""
    for name, (read, write) in _TORCH_SETTINGS.items():
        if read() != settings[name]:
            write(settings[name])


@dataclass(slots=True)
class ProcessState:
    """The current state of this process, which a worker takes over. Plain data."""

    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    directory: str | None = field(default_factory=_working_directory)
    path: list[str] = field(default_factory=lambda: list(sys.path))
    argv: list[str] = field(default_factory=lambda: list(sys.argv))
    umask: int = field(default_factory=_umask)
    affinity: frozenset[int] | None = field(
        default_factory=lambda: frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    )
    recursion_limit: int = field(default_factory=sys.getrecursionlimit)
    filters: list[warning_filters.Filter] = field(default_factory=warning_filters.collect)
    log_levels: dict[str, int] = field(default_factory=_log_levels)
    log_disable: int = field(default_factory=lambda: logging.root.manager.disable)
    log_handlers: list[HandlerPlan] = field(default_factory=_log_handlers)
    torch: dict[str, Any] = field(default_factory=_torch_settings)
    numpy_errors: dict[str, Any] = field(default_factory=lambda: dict(np.geterr()))
    authkey: bytes = field(default_factory=lambda: bytes(process.current_process().authkey))
    parent_name: str = field(default_factory=lambda: process.current_process().name)
    parent_pid: int = field(default_factory=os.getpid)

    def for_other_machines(self) -> ProcessState:
        """Return the part of the state that may leave this machine: no environment, which has secrets, and no key."""
        return replace(self, environ={}, authkey=b"")

    def apply_to_worker(self, worker: int, *, from_fork_server: bool) -> None:
        """Apply the state to a worker. `from_fork_server`: multiprocessing did not start it."""
        if from_fork_server:
            _become_child(worker, self)
        self.apply_to_program(f"worker {worker}")

    def apply_to_program(self, who: str = "the template") -> None:
        """Apply the state that the program's code can see. May be called again with a newer state."""
        os.environ.clear()
        os.environ.update(self.environ)
        if self.directory is not None:
            try:
                os.chdir(self.directory)
            except OSError:
                warnings.warn(f"{who} cannot enter {self.directory}", stacklevel=2)
        sys.path[:] = self.path
        sys.argv[:] = self.argv
        os.umask(self.umask)
        if self.affinity is not None:
            os.sched_setaffinity(0, self.affinity)
        sys.setrecursionlimit(max(self.recursion_limit, sys.getrecursionlimit()))
        warning_filters.use(self.filters)
        _apply_logging(self.log_levels, self.log_handlers)
        logging.disable(self.log_disable)
        _apply_torch(self.torch)
        np.seterr(**self.numpy_errors)
