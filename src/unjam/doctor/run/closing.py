"""Runs at the exit of a process: collects the facts of its loaders and writes the reports."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from unjam.doctor.facts.run import RunFacts, with_distinctions
from unjam.doctor.run.records import RunRecords, words_of
from unjam.doctor.run.settings import Settings
from unjam.system import limits
from unjam.system.masking import masked_words, without_secrets
from unjam.system.printable import printable
from unjam.system.private_files import write_report
from unjam.system.process_table import rank_in
from unjam.version import __version__


def close(settings: Settings) -> None:
    """Write the reports of a process that used a loader and is not a worker; call it at exit."""
    records = RunRecords.here(settings)
    if records.pid != os.getpid() or not any(one.iterators for one in records.all) or _is_worker():
        return
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    try:
        facts = gather(records, settings)
        records.all = []
        _write(without_secrets(facts), settings)
    except Exception as error:  # noqa: BLE001 - the program is done; do not change its exit code
        sys.stderr.write(printable(f"unjam: the summary could not be written: {type(error).__name__}: {error}\n"))
    if interrupted:
        _stay_interrupted()


def _stay_interrupted() -> None:
    """Make Python exit by SIGINT, as shells expect after Ctrl-C.

    Python does so if the last code that it ran from text raised KeyboardInterrupt. Importing a
    module with dataclasses runs code from text and resets that flag, so we set it again.
    """
    import ctypes  # noqa: PLC0415 - rare

    sys.excepthook = lambda *_: None
    ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")


def gather(records: RunRecords, settings: Settings) -> RunFacts:
    """Return the facts of this process."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return RunFacts(
        settings.command or " ".join(masked_words(sys.argv)),
        time.monotonic() - records.began,
        with_distinctions([one.facts() for one in records.all if one.iterators]),
        words_of(error) if error is not None else "",
        rank_in(os.environ),
        os.getpid(),
        limits.processors(),
        records.thread_waits.seconds(),
    )


def _is_worker() -> bool:
    """Whether this process is a data worker; then its parent writes the report."""
    from torch.utils.data import get_worker_info  # noqa: PLC0415 - torch is imported by now

    return bool(multiprocessing.current_process().daemon) or get_worker_info() is not None


def _write(facts: RunFacts, settings: Settings) -> None:
    from unjam.doctor.report import run  # noqa: PLC0415 - only at exit
    from unjam.doctor.rules.advice import advise  # noqa: PLC0415 - as above

    judged = advise(facts)
    if not settings.quiet:
        sys.stderr.write(printable(run.text(judged)) + "\n")
    if settings.html:
        _save(own_name(settings.html, facts, settings), run.page(judged, __version__))
    if settings.json:
        _save(own_name(settings.json, facts, settings), run.as_json(judged, __version__))
    if settings.trace:
        from unjam.doctor.report import trace  # noqa: PLC0415 - as above

        _save(own_name(settings.trace, facts, settings), trace.chrome(facts, __version__))


def own_name(path: str, facts: RunFacts, settings: Settings) -> str:
    """Return the path for this process: the first keeps the name, others add their rank or pid."""
    if facts.rank in ("", "0") and (facts.rank or facts.pid == settings.leader):
        return path
    if path == "-":
        return path
    head, dot, tail = path.rpartition(".")
    own = f"rank{facts.rank}" if facts.rank else f"pid{facts.pid}"
    return f"{head}.{own}{dot}{tail}" if dot else f"{path}.{own}"


def _save(path: str, text: str) -> None:
    if path == "-":
        sys.stdout.write(printable(text) + "\n")
        return
    try:
        write_report(path, text)
    except OSError as error:
        sys.stderr.write(printable(f"unjam: {path} cannot be written: {error.strerror}\n"))
