"""`unjam.install()`: what `unjam run` does, from inside a program or a notebook."""

from __future__ import annotations

import atexit
import os
import time
import warnings
from typing import TYPE_CHECKING

from unjam.doctor.run import begin
from unjam.doctor.run.patches import PATCHES
from unjam.doctor.run.settings import Settings, with_folder
from unjam.errors import UnjamWarning
from unjam.loader.options import LoaderOptions, OptionKeywords
from unjam.system.file_owner import calling_place

if TYPE_CHECKING:
    from typing_extensions import Unpack

_installed: list[Settings] = []


def install(
    *, auto: bool = False, observe: bool = False, summary: bool = True, **options: Unpack[OptionKeywords]
) -> None:
    """Make every torch `DataLoader` of this process load with unjam.

    Call it before or after the import of torch. The class remains torch's; only its iterator is
    unjam's. This includes loaders that accelerate, transformers' Trainer or another library
    creates. Loaders whose workers already run continue unchanged.

    auto: choose the number of workers while the program runs.
    observe: keep torch's iterator and only measure.
    summary: print a summary of the data loading at exit or at `uninstall`.
    options: unjam's own options of `DataLoader`, such as on_error="skip".
    """
    given = LoaderOptions.from_keywords(options).as_dict()
    if observe and (options or auto):
        raise ValueError("observe=True keeps torch's loader, which has none of unjam's options")
    if _installed:
        uninstall()
    if begin.has_begun():
        file, line = calling_place()
        text = "this program runs under `unjam run`, so unjam.install() has no effect"
        warnings.warn_explicit(text, UnjamWarning, file, line)
        return
    settings = Settings(
        {name: given[name] for name in options},
        observe=observe,
        auto=auto,
        quiet=not summary,
        leader=os.getpid(),
        began=time.time(),
    )
    settings = with_folder(settings)
    _installed.append(settings)
    begin.patch(settings, lambda: settings in _installed)
    atexit.register(_end, settings)


def uninstall() -> None:
    """Undo `install`: new iterators are torch's again. Print the summary unless `install` was called with `summary=False`."""
    while _installed:
        settings = _installed.pop()
        atexit.unregister(_end)
        kept = PATCHES.undo()
        _end(settings)
        if kept:
            file, line = calling_place()
            text = f"another library has replaced {', '.join(kept)} since unjam.install(); unjam leaves the replacement in place"
            warnings.warn_explicit(text, UnjamWarning, file, line)


def is_installed() -> bool:
    """Whether `install` is in effect, so that torch's loaders create unjam's iterators."""
    return any(not settings.observe for settings in _installed)


def _end(settings: Settings) -> None:
    if os.getpid() == settings.leader:
        begin.end(settings)
