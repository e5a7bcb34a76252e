"""Begins to observe a program, at the start of each of its interpreters. Forked processes inherit the patches.

The patches are applied when the program imports what they change; nothing here imports torch.
"""

from __future__ import annotations

import atexit
import os
from types import ModuleType
from typing import Any

from unjam.doctor.check.cleanup_process import WATCH_VARIABLE
from unjam.doctor.check.target.file_events import record_file_events
from unjam.doctor.check.target.observed_faults import record_faults
from unjam.doctor.check.target.observer import Observer
from unjam.system.import_hook import after_import
from unjam.system.private_files import own_folder


def begin() -> None:
    """Register the patches for when the program imports torch."""
    folder = os.environ.get(WATCH_VARIABLE, "")
    try:
        with own_folder(folder):
            observer = Observer(folder)
    except OSError:
        return  # the doctor is gone
    atexit.register(_at_exit, observer)
    record_file_events(observer)
    record_faults(observer)

    def after_dataloader(module: ModuleType) -> None:
        from unjam.doctor.check.target.observed_loaders import patch_loaders  # noqa: PLC0415 - imports torch

        patch_loaders(module, observer)

    def after_fetch(module: ModuleType) -> None:
        from unjam.doctor.check.target.observed_samples import patch_fetchers  # noqa: PLC0415 - as above

        patch_fetchers(module, observer)

    def after_optimizer(module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(lambda optimizer, *_: _count_step(observer, optimizer))

    def after_serialization(module: ModuleType) -> None:
        from unjam.doctor.check.target.observed_saves import patch_saves  # noqa: PLC0415 - as above

        patch_saves(module, observer)

    def after_dataset(module: ModuleType) -> None:
        from unjam.doctor.check.target.observed_loaders import patch_datasets  # noqa: PLC0415 - as above

        patch_datasets(module)

    after_import("torch.serialization", after_serialization)
    after_import("torch.utils.data.dataset", after_dataset)
    after_import("torch.utils.data.dataloader", after_dataloader)
    after_import("torch.utils.data._utils.fetch", after_fetch)
    after_import("torch.optim.optimizer", after_optimizer)


def _count_step(observer: Observer, optimizer: Any) -> None:
    observer.steps += 1
    number = observer.optimizers.get(optimizer)
    if number is None:
        observer.known_optimizers += 1
        number = observer.known_optimizers
        observer.optimizers.put(optimizer, number)
    observer.optimizer = number


def _at_exit(observer: Observer) -> None:
    if not observer.captured:  # otherwise another callback, registered later, has run before
        observer.record_exit()
