"""The beginning, in every process of a program: nothing but a promise to act when torch's DataLoader is imported."""

from __future__ import annotations

import atexit
import os
from types import ModuleType

from unjam.doctor.run.settings import Settings, from_environment
from unjam.system.import_hook import after_import

_begun: list[int] = []


def begin() -> None:
    """Once in a process; a fork of it has begun already."""
    settings = from_environment()
    if settings is None or _begun:
        return
    _begun.append(os.getpid())

    def loader_is_there(module: ModuleType) -> None:
        from unjam.doctor.run.take_over import take_over  # noqa: PLC0415 - not before torch

        take_over(module, settings)

    def fetcher_is_there(module: ModuleType) -> None:
        from unjam.doctor.run.timed_fetchers import time_fetchers  # noqa: PLC0415 - as above

        time_fetchers(module, settings)

    after_import("torch.utils.data.dataloader", loader_is_there)
    after_import("torch.utils.data._utils.fetch", fetcher_is_there)
    atexit.register(_end, settings)
    if os.getpid() == settings.leader and not settings.observe and not settings.launcher:
        from unjam.loader.pool import fork_server  # noqa: PLC0415 - without torch: it is the program's to import

        fork_server.start_early()


def _end(settings: Settings) -> None:
    import sys  # noqa: PLC0415 - at the end

    closing = sys.modules.get("unjam.doctor.run.closing")
    if closing is not None:
        closing.close(settings)
    if os.getpid() == settings.leader:
        import shutil  # noqa: PLC0415 - as above

        shutil.rmtree(settings.folder, ignore_errors=True)
