"""Runs at the start of every process of a program: waits for the import of torch's loader."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import ModuleType

from unjam.doctor.run.settings import Settings, from_environment, remove_folder
from unjam.system.import_hook import after_import

_begun: list[int] = []


def begin() -> None:
    """Register the hooks, once per process; a fork inherits them."""
    settings = from_environment()
    if settings is None or _begun:
        return
    _begun.append(os.getpid())
    patch(settings)
    atexit.register(end, settings)
    if os.getpid() == settings.leader and not settings.observe and not settings.launcher:
        from unjam.loader.pool import fork_server  # noqa: PLC0415 - does not import torch

        fork_server.start_early()


def has_begun() -> bool:
    """Whether this process runs under `unjam run`."""
    return bool(_begun)


def patch(settings: Settings, in_force: Callable[[], bool] = lambda: True) -> None:
    """Patch torch's loader and fetchers when they are imported, if `in_force()` is true then."""

    def after_dataloader(module: ModuleType) -> None:
        from unjam.doctor.run.replace_loader import replace_loader  # noqa: PLC0415 - only after torch

        if in_force():
            replace_loader(module, settings)

    def after_fetch(module: ModuleType) -> None:
        from unjam.doctor.run.timed_fetchers import time_fetchers  # noqa: PLC0415 - as above

        if in_force():
            time_fetchers(module, settings)

    after_import("torch.utils.data.dataloader", after_dataloader)
    after_import("torch.utils.data._utils.fetch", after_fetch)


def end(settings: Settings) -> None:
    """Write the reports of this process; in the program's first process, also remove the folder."""
    closing = sys.modules.get("unjam.doctor.run.closing")
    if closing is not None:
        closing.close(settings)
    if os.getpid() == settings.leader:
        remove_folder(settings)
