"""torch's DataLoader in the program's own process: unjam's iterator in the place of torch's, and a clock at `next`.

The class stays torch's own, so that whatever the program compares, subclasses or pickles is as it was; only the iterator that it
makes is another.
"""

from __future__ import annotations

import functools
import sys
import time
from types import ModuleType
from typing import Any

from unjam.doctor.run import timed_fetchers
from unjam.doctor.run.records import Record, Records
from unjam.doctor.run.settings import Settings
from unjam.loader import attached
from unjam.system.import_hook import after_import

_now = time.monotonic_ns


def take_over(module: ModuleType, settings: Settings) -> None:
    """Patch what was just imported. No function that torch warns from gets a frame of ours above it: filters name its callers."""
    from unjam.doctor.run import closing  # noqa: F401, PLC0415 - its being imported says that there is something to close

    records = Records.here(settings)
    loader = module.DataLoader
    get_iterator, iterate = loader._get_iterator, loader.__iter__  # noqa: SLF001 - torch's names

    def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
        above = super(loader, kind).__new__
        this = above(kind) if above is object.__new__ else above(kind, *args, **kwargs)
        records.made(this, sys._getframe(1))  # noqa: SLF001 - as above
        return this

    @functools.wraps(get_iterator)
    def iterator(this: Any) -> Any:
        record = records.of(this)
        return _ours(this, settings, record) if _may_take(this, settings, record) else get_iterator(this)

    @functools.wraps(iterate)
    def iterated(this: Any) -> Any:
        record, begun = records.of(this), _now()
        token = timed_fetchers.next_inline()
        found = iterate(this)
        if isinstance(found, module._BaseDataLoaderIter):  # noqa: SLF001 - as above
            record.begins(found, this, token, begun, _now())
        return found

    loader.__new__, loader._get_iterator, loader.__iter__ = new, iterator, iterated  # noqa: SLF001 - as above
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):  # noqa: SLF001 - as above
        time_next(kind)
    after_import("unjam.loader.iterator", _time_ours)


def _time_ours(module: ModuleType) -> None:
    for kind in (module.InlineIterator, module.WorkersIterator):
        time_next(kind)


def time_next(kind: Any) -> None:
    """Note how long the program waits for each batch of an iterator's class."""
    next_data = kind._next_data  # noqa: SLF001 - torch's name

    @functools.wraps(next_data)
    def timed(this: Any) -> Any:
        watch = getattr(this, "unjam_pass", None)
        if watch is None:
            return next_data(this)  # somebody made torch's iterator without asking its loader
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

    kind._next_data = timed  # noqa: SLF001 - as above


def _may_take(loader: Any, settings: Settings, record: Record) -> bool:
    """Whether unjam's iterator can stand in; otherwise torch's own is watched, and the summary says why."""
    if settings.observe:
        record.note = "watched (--observe)"
        return False
    from unjam.loader.dataloader import can_open  # noqa: PLC0415 - torch is complete by now

    if not can_open(loader):
        record.note = "watched: unjam's iterator cannot run on this system, or with this torch"
        return False
    return True


def _ours(loader: Any, settings: Settings, record: Record) -> Any:
    from unjam.loader.dataloader import adopt, open_iterator  # noqa: PLC0415 - torch is complete by now

    if attached.find(loader) is None:
        record.pacer = adopt(loader, auto=settings.auto, pacer=record.pacer, **settings.options)
    return open_iterator(loader)
