"""Patches torch's DataLoader so that it returns unjam's iterator, and times each `next`.

The class remains torch's, so code that compares, subclasses or pickles it still works. Only the
iterator changes.
"""

from __future__ import annotations

import functools
import sys
import time
from types import ModuleType
from typing import Any

from unjam.doctor.run import closing, timed_fetchers
from unjam.doctor.run.patches import PATCHES
from unjam.doctor.run.records import Record, RunRecords
from unjam.doctor.run.settings import Settings
from unjam.system.import_hook import after_import

_now = time.monotonic_ns


def replace_loader(module: ModuleType, settings: Settings) -> None:
    """Patch the module that was just imported.

    We don't wrap functions in which torch warns: warning filters match the module of the caller.
    """
    records = RunRecords.here(settings)
    records.close = closing.close
    loader = module.DataLoader
    get_iterator, iterate = loader._get_iterator, loader.__iter__  # noqa: SLF001 - torch's names

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        this = plain_new(kind, *args, **kwargs)
        records.made(this, sys._getframe(1))  # noqa: SLF001 - as above
        return this

    @functools.wraps(get_iterator)
    def iterator(this: Any) -> Any:
        record = records.of(this)
        return _unjam_iterator(this, settings, record) if _can_replace(this, settings, record) else get_iterator(this)

    @functools.wraps(iterate)
    def iterated(this: Any) -> Any:
        record, begun = records.of(this), _now()
        token = timed_fetchers.next_inline()
        found = iterate(this)
        if isinstance(found, module._BaseDataLoaderIter):  # noqa: SLF001 - as above
            record.begins(found, this, token, begun, _now())
        return found

    def plain_new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        above = super(loader, kind).__new__
        return above(kind) if above is object.__new__ else above(kind, *args, **kwargs)

    # a class with a deleted __new__ accepts no arguments, so `undo` leaves a plain one
    PATCHES.set(loader, "__new__", new, afterwards=plain_new)
    PATCHES.set(loader, "_get_iterator", iterator)
    PATCHES.set(loader, "__iter__", iterated)
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):  # noqa: SLF001 - as above
        time_next(kind)
    after_import("unjam.loader.iterator", _time_unjam_iterators)


def _time_unjam_iterators(module: ModuleType) -> None:
    for kind in (module.InlineIterator, module.WorkersIterator):
        time_next(kind)


def time_next(kind: Any) -> None:
    """Record how long the program waits for each batch of this iterator class."""
    next_data = kind._next_data  # noqa: SLF001 - torch's name

    @functools.wraps(next_data)
    def timed(this: Any) -> Any:
        watch = getattr(this, "unjam_pass", None)
        if watch is None:
            return next_data(this)  # the program created the iterator without the loader
        asked = _now()
        try:
            data = next_data(this)
        except StopIteration:
            watch.ended(asked, _now())
            raise
        except BaseException as error:
            watch.raised(asked, _now(), error)
            raise
        watch.waited(asked, _now(), data)
        return data

    PATCHES.set(kind, "_next_data", timed)


def _can_replace(loader: Any, settings: Settings, record: Record) -> bool:
    """Whether we can use unjam's iterator; if not, we record torch's and the summary says why."""
    if settings.observe:
        record.note = "kept because of --observe"
        return False
    from unjam.loader.dataloader import can_open  # noqa: PLC0415 - torch is imported by now

    if not can_open(loader):
        record.note = "kept because unjam's iterator cannot run on this system or with this torch"
        return False
    return True


def _unjam_iterator(loader: Any, settings: Settings, record: Record) -> Any:
    from unjam.loader import dataloader  # noqa: PLC0415 - torch is imported by now
    from unjam.loader.options import LoaderOptions  # noqa: PLC0415 - as above
    from unjam.loader.state import attached  # noqa: PLC0415 - as above

    if not attached(loader):
        options = LoaderOptions(**settings.options)
        record.sizer = dataloader.attach_unjam(loader, options, auto=settings.auto, sizer=record.sizer).sizer
    return dataloader.open_iterator(loader)
