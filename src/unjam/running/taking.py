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

from unjam.running.records import Record, Records
from unjam.running.settings import Settings
from unjam.worker.imports import after_import

_now = time.monotonic_ns


def take_over(module: ModuleType, settings: Settings) -> None:
    """Patch what was just imported."""
    from unjam.running import closing  # noqa: F401, PLC0415 - its being imported says that there is something to close

    records = Records.here(settings)
    loader, base = module.DataLoader, module._BaseDataLoaderIter  # noqa: SLF001 - torch's names
    init, get_iterator, begin = loader.__init__, loader._get_iterator, base.__init__  # noqa: SLF001 - as above

    @functools.wraps(init)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        init(this, *args, **kwargs)
        records.made(this, sys._getframe(1))  # noqa: SLF001 - as above

    @functools.wraps(get_iterator)
    def iterator(this: Any) -> Any:
        record = records.of(this)
        begun = _now()
        try:
            return _ours(this, settings) if _may_take(this, settings, record) else get_iterator(this)
        finally:
            record.started(begun, _now())

    @functools.wraps(begin)
    def begun(this: Any, its_loader: Any, *args: Any, **kwargs: Any) -> None:
        begin(this, its_loader, *args, **kwargs)
        this.unjam_record = record = records.of(its_loader)
        record.seed(int(this._base_seed))  # noqa: SLF001 - as above
        recorder = getattr(getattr(its_loader, "_unjam", its_loader), "_recorder", None)
        if recorder is not None and not settings.observe:
            recorder.tap, record.note = record.delivered, ""
            if recorder not in record.recorders:
                record.recorders.append(recorder)

    loader.__init__, loader._get_iterator, base.__init__ = made, iterator, begun  # noqa: SLF001 - as above
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):  # noqa: SLF001 - as above
        time_next(kind)
    after_import("unjam.iterator", _time_ours)


def _time_ours(module: ModuleType) -> None:
    for kind in (module.InlineIterator, module.WorkersIterator):
        time_next(kind)


def time_next(kind: Any) -> None:
    """Note how long the program waits for each batch of an iterator's class."""
    next_data = kind._next_data  # noqa: SLF001 - torch's name

    @functools.wraps(next_data)
    def timed(this: Any) -> Any:
        asked = _now()
        try:
            data = next_data(this)
        except StopIteration:
            this.unjam_record.ended(asked, _now())
            raise
        except BaseException as error:
            this.unjam_record.raised(asked, _now(), error)
            raise
        this.unjam_record.waited(asked, _now())
        return data

    kind._next_data = timed  # noqa: SLF001 - as above


def _may_take(loader: Any, settings: Settings, record: Record) -> bool:
    """Whether unjam's iterator can stand in; otherwise torch's own is watched, and the summary says why."""
    if settings.observe:
        record.note = "watched (--observe)"
        return False
    if sys.platform == "win32" and loader.num_workers:
        record.note = "watched: no unjam workers on Windows"
        return False
    return True


def _ours(loader: Any, settings: Settings) -> Any:
    from unjam.loader import adopt, open_iterator  # noqa: PLC0415 - torch is complete by now

    if not hasattr(loader, "_unjam"):
        adopt(loader, **settings.options)
    return open_iterator(loader)
