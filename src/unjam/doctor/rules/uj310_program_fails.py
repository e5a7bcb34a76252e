"""Loading raised an exception while the program ran.

What happened: a loader, its sampler, its dataset or its workers raised an exception during an
unmodified run of the program.

Why: see the exception. If it is raised only in a later epoch or in a second loader, the cause is
something that the program did in between: a changed working directory, a closed file, a removed
file, a changed list.

How to confirm: run the program; the traceback names the same line.

How to fix: fix what the evidence names.

Limits: this reports an observation; no trial removed the cause to confirm it. A rule that knows the
cause replaces it.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import NamedTuple

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.faults import WatchedFailure
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import line_of, quoted
from unjam.doctor.facts.source_places import attribute_calls, class_line, method_line
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.queries import failures
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.system.file_owner import is_users

RULE = Rule(
    "UJ310",
    "program-fails",
    symptom="raised",
    fallback=True,
    yields_to=("died", "start", "none", "differs", "lost", "frozen"),
)
# the same rule, for a failure that something the program did earlier explains
KNOWN = replace(RULE, fallback=False, replaces=("UJ306", "UJ308", "UJ309"))


class _Hint(NamedTuple):
    """What the program did earlier, what would help, and the line to change."""

    words: str
    help: str
    place: Place | None = None
    culprit: str = ""


_WORDS = {
    "constructor": "creating the loader", "iter": "iter(loader)", "sampler": "the sampler", "made": "iter(dataset)",
    "sample": "loading a sample", "collate": "the collate function", "next": "the loader",
}  # fmt: skip


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Report the exception that ended the program, if loading raised it."""
    if watched.outcome not in ("failed", "frozen"):
        return None
    loading = [one for one in watched.failures if one.stage != "end"]
    end = next((one for one in watched.failures if one.stage == "end"), None)
    # an exception that the program caught did not end it
    fatal = [one for one in loading if end is None or failures.is_same_exception(one, end)]
    if not fatal:
        return _worker_ended(watched, end)
    first = min(fatal, key=lambda one: failures.ORDER.index(one.stage))
    loader = failures.loader_of(watched, first)
    hint = _hint(watched, first, loader)
    words = exception_line(first.type_name, first.message)
    where = _WORDS.get(first.stage, first.stage)
    sample = f" (sample {first.index})" if first.index else ""
    epoch = f", in epoch {first.epoch + 1}" if first.epoch > 0 else ""
    return Finding(
        KNOWN if hint.words else RULE,
        f"{where}{sample} raises {words[:160]}{epoch}",
        hint.culprit
        or (f"sample {first.index} at {first.place}" if first.index and first.place else str(first.place or where)),
        (
            words[:300],
            *line_evidence("raised at", first.place),
            f"in {loader.name}" if loader is not None else "",
            hint.words,
        ),
        AGREES if hint.words else OBSERVED,
        hint.help,
        hint.place or first.place or (loader.place if loader else None),
    )


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def _worker_ended(watched: ProgramFacts, end: WatchedFailure | None) -> Finding | None:
    """Report a worker that ended with an exception outside of any sample, from what the program printed."""
    if end is None or "DataLoader worker" not in end.message:
        return None
    blocks = re.split(r"^Process \S+:$", watched.output, flags=re.MULTILINE)[1:]
    for block in blocks:
        frames = [
            (Place(file, int(line)), name) for file, line, name in _FRAME.findall(block.partition("\nProcess ")[0])
        ]
        users = [one for one in frames if is_users(one[0].file)]
        raised = [line for line in block.splitlines() if line and not line.startswith((" ", "Traceback"))]
        if not users or not raised:
            continue
        place, name = users[-1]
        timers = next(iter(attribute_calls(place.file, ("alarm", "setitimer"))), None)
        return Finding(
            KNOWN,
            f"a worker ended between samples: {name} raised {raised[0][:160]}",
            name,
            (
                raised[0][:300],
                f"raised at {quoted(place)}",
                f"a timer set at {quoted(timers)} fires after the sample has finished" if timers else "",
            ),
            AGREES,
            "cancel the timer when the sample has finished: signal.alarm(0), signal.setitimer(signal.ITIMER_REAL, 0)"
            if timers
            else f"look at {quoted(place)}",
            timers or place,
        )
    return None


def _hint(watched: ProgramFacts, failure: WatchedFailure, loader: WatchedLoader | None) -> _Hint:
    """Return what the program did earlier, and what would help."""
    text = f"{failure.type_name} {failure.message}"
    length = loader.description.length if loader is not None else None
    outside = failure.stage == "sample" and failure.index.lstrip("-").isdecimal() and length is not None
    if outside and loader is not None and not -int(length or 0) <= int(failure.index) < int(length or 0):
        sampler, file = loader.description.sampler, loader.description.sampler_file
        return _Hint(
            f"{sampler} drew index {failure.index}, and the dataset has {length:,} samples",
            f"let {sampler} draw from 0 to len(dataset) - 1",
            method_line(file, sampler, "__iter__") or class_line(file, sampler),
            sampler,
        )
    if "No such file" in text or "FileNotFoundError" in text or "NotADirectory" in text:
        return _missing_file(watched, failure, loader)
    if "closed" in text.lower():
        return _Hint(
            "the object that is read was closed earlier",
            "open it on first use in the worker, and close it after the last epoch",
        )
    if "pandas" in failure.trace and "KeyError" in text:
        return _Hint(
            "a pandas object is indexed by label: after rows are removed or sorted, the labels are no longer 0 to n - 1 in order",
            "use .iloc for positions, or reset_index(drop=True) after filtering",
        )
    at_pipe = "EOFError" in text and "multiprocessing/connection.py" in failure.trace
    if "ConnectionRefused" in text or "BrokenPipe" in text or "ConnectionReset" in text or at_pipe:
        return _Hint(
            "the process at the other end has ended",
            "keep the server (manager, connection) alive while the loader is in use",
        )
    return _Hint("", f"look at {quoted(failure.place)}" if failure.place else "see the traceback of the program")


def _missing_file(watched: ProgramFacts, failure: WatchedFailure, loader: WatchedLoader | None) -> _Hint:
    path = _path_in(failure.message)
    folders = [epoch.folder for epoch in (loader.epochs if loader is not None else []) if epoch.folder]
    here = folders[-1] if folders else os.getcwd()
    full = os.path.abspath(os.path.join(here, path))
    before = [one for one in reversed(watched.file_operations) if one.at <= failure.at]
    entered = next((one for one in before if one.kind == "entered"), None)
    gone = next((one for one in before if one.kind in ("removed", "moved") and _covers(one.path, full)), None)
    if gone is not None and gone.place is None:
        files = list(loader.description.files) if loader is not None else []
        files += [failure.place.file] if failure.place else []
        registered = next(
            (at for file in files for at in attribute_calls(file, ("register",)) if "atexit" in quoted(at)), None
        )
        return _Hint(
            f"{gone.path} was removed by a process when it exited (atexit)"
            + (
                f": registered at {quoted(registered)}, which also runs in a worker that imports the module"
                if registered
                else ""
            ),
            'register it only in the main process: under `if __name__ == "__main__"`, or where the folder is created',
            registered,
            f"{line_of(registered)} at {registered}" if registered else os.path.basename(gone.path),
        )
    if gone is not None:
        words = f"{gone.path} was {gone.kind} at {quoted(gone.place)}"
        remedy = "keep the data until the last epoch has finished, and remove only what this line is meant to remove"
        if gone.pid != failure.pid and gone.worker >= 0:
            words = f"worker {gone.worker} removed {gone.path} at {quoted(gone.place)}, while worker {failure.worker} still uses it"
            remedy = "give each worker its own folder, or let one process decide what is removed"
        return _Hint(words, remedy, gone.place, os.path.basename(gone.path))
    if entered is not None and not os.path.isabs(path):
        return _Hint(
            f"the path is relative, and the program changed its working directory at {quoted(entered.place)}",
            "make the paths absolute (os.path.abspath, Path.resolve) before the working directory changes",
            entered.place,
            "os.chdir",
        )
    if "multiprocessing/shared_memory.py" in failure.trace:
        return _Hint(
            f"no line of the program removed the shared memory {path}: before Python 3.13, when a process that only attached to a "
            "block ends, its resource tracker removes the block",
            "in the program that attaches, use SharedMemory(..., track=False), or before Python 3.13 "
            'resource_tracker.unregister(block._name, "shared_memory")',
            None,
            f"the other process that attaches to {path}",
        )
    if not os.path.isabs(path):
        return _Hint(
            f"the path {path!r} is relative; the program runs in {here}",
            "make the path absolute, from __file__ for example",
        )
    return _Hint(f"{path} does not exist", "check how the path is built")


def _covers(deleted: str, path: str) -> bool:
    return path == deleted or path.startswith(f"{deleted.rstrip('/')}/")


def _path_in(message: str) -> str:
    _, quote, rest = message.partition("'")
    return rest.partition("'")[0] if quote else ""
