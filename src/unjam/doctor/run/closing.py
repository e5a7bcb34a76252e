"""The end of a process: what its loaders did is put together, judged, and written where the user asked."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from unjam.doctor.facts.run import RunFacts
from unjam.doctor.run.records import Records, words_of
from unjam.doctor.run.settings import Settings
from unjam.system import limits
from unjam.system.masking import masked_words, without_secrets
from unjam.system.printable import printable
from unjam.system.private_files import write_report
from unjam.system.process_table import rank_in


def close(settings: Settings) -> None:
    """Once, at the end of a process that used a loader and is not a worker of one."""
    records = Records.here(settings)
    if records.pid != os.getpid() or not any(one.iterators for one in records.all) or _is_worker():
        return
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    try:
        facts = gather(records, settings)
        records.all = []
        _write(without_secrets(facts), settings)
    except Exception as error:  # noqa: BLE001 - the program has done its work; its exit code is its own
        sys.stderr.write(printable(f"unjam: the summary could not be written: {type(error).__name__}: {error}\n"))
    if interrupted:
        _stay_interrupted()


def _stay_interrupted() -> None:
    """Let Python end by SIGINT, as shells expect of a program that Ctrl-C ended.

    It remembers that the last code it ran from text raised KeyboardInterrupt; dataclasses run code from text when they are imported, and
    made it forget.
    """
    import ctypes  # noqa: PLC0415 - rare

    sys.excepthook = lambda *_: None
    ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")


def gather(records: Records, settings: Settings) -> RunFacts:
    """The facts of this process."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return RunFacts(
        settings.command or " ".join(masked_words(sys.argv)),
        time.monotonic() - records.began,
        tuple(one.facts() for one in records.all if one.iterators),
        words_of(error) if error is not None else "",
        rank_in(os.environ),
        os.getpid(),
        limits.processors(),
        records.standing.seconds(),
    )


def at_end_of_fork(settings: Settings) -> None:
    """A forked process of multiprocessing leaves without Python's own exit; it has a way of its own to be told."""
    from multiprocessing import util  # noqa: PLC0415 - rare

    util.Finalize(None, close, args=(settings,), exitpriority=-1000)


def _is_worker() -> bool:
    """Whether this process is a data worker that uses a loader itself: its parent tells the story."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - a process that used a loader has it

    return bool(multiprocessing.current_process().daemon) or get_worker_info() is not None


def _write(facts: RunFacts, settings: Settings) -> None:
    from unjam.doctor.report import run  # noqa: PLC0415 - only when a program ends
    from unjam.doctor.rules.advice import advise  # noqa: PLC0415 - as above

    judged = advise(facts)
    if not settings.quiet:
        sys.stderr.write(printable(run.text(judged)) + "\n")
    from unjam import __version__  # noqa: PLC0415 - as above

    if settings.html:
        _save(own_name(settings.html, facts, settings), run.page(judged, __version__))
    if settings.json:
        _save(own_name(settings.json, facts, settings), run.as_json(judged))
    if settings.trace:
        from unjam.doctor.report import trace  # noqa: PLC0415 - as above

        _save(own_name(settings.trace, facts, settings), trace.chrome(facts))


def own_name(path: str, facts: RunFacts, settings: Settings) -> str:
    """One file for each process of a program: the first keeps the name, the others add their rank or number."""
    if facts.rank in ("", "0") and (facts.rank or facts.pid == settings.leader):
        return path
    head, dot, tail = path.rpartition(".")
    own = f"rank{facts.rank}" if facts.rank else f"pid{facts.pid}"
    return f"{head}.{own}{dot}{tail}" if dot else f"{path}.{own}"


def _save(path: str, text: str) -> None:
    try:
        write_report(path, text)
    except OSError as error:
        sys.stderr.write(printable(f"unjam: {path} cannot be written: {error.strerror}\n"))
