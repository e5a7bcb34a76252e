"""Warns when a library silently replaces one of our loaders with one of torch's."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch.utils.data

from unjam.errors import UnjamWarning
from unjam.system.file_owner import calling_place

_watched: list[bool] = []


def watch_accelerate(ours: type[torch.utils.data.DataLoader[Any]]) -> None:
    """Warn when `accelerator.prepare` replaces one of our loaders, if accelerate is imported."""
    module = sys.modules.get("accelerate.data_loader")
    original = getattr(module, "prepare_data_loader", None)
    if _watched or original is None:
        return
    _watched.append(True)

    @functools.wraps(original)
    def prepare_data_loader(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(dataloader, *args, **kwargs)
        if isinstance(dataloader, ours) and not _is_ours(prepared, ours):
            file, line = calling_place()
            text = (
                f"accelerate replaced the unjam loader for {type(dataloader.dataset).__qualname__} with a torch loader; "
                "call unjam.install() before accelerator.prepare() to keep unjam's"
            )
            warnings.warn_explicit(text, UnjamWarning, file or "<unknown>", line or 1)
        return prepared

    for user in (module, sys.modules.get("accelerate.accelerator"), sys.modules.get("accelerate")):
        if user is not None and vars(user).get("prepare_data_loader") is original:
            vars(user)["prepare_data_loader"] = prepare_data_loader


def _is_ours(loader: Any, ours: type) -> bool:
    """Return whether a loader makes our iterators, by its class or because of `unjam.install`."""
    if isinstance(loader, ours) or isinstance(getattr(loader, "base_dataloader", None), ours):
        return True
    installed = sys.modules.get("unjam.doctor.run.install")
    begun = sys.modules.get("unjam.doctor.run.begin")
    return (installed is not None and installed.is_installed()) or (begun is not None and begun.has_begun())
