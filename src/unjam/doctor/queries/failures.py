"""Queries on the failures of a watched program."""

from __future__ import annotations

import os

from unjam.doctor.explanation import Knowledge
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.faults import WatchedFailure
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader

LONGEST = 40
ORDER = ("constructor", "sampler", "made", "sample", "collate", "iter", "next", "end")


def fatal_failure(known: Knowledge) -> WatchedFailure | None:
    """The failure that ended the program, as first observed: in a sample rather than where the program got it."""
    watched = known.watched
    if watched.outcome not in ("failed", "frozen"):
        return None
    end = next((one for one in watched.failures if one.stage == "end"), None)
    found = [one for one in watched.failures if one.stage == "end" or end is None or is_same_exception(one, end)]
    return min(found, key=lambda one: ORDER.index(one.stage) if one.stage in ORDER else 9, default=None)


def is_same_exception(one: WatchedFailure, end: WatchedFailure) -> bool:
    """Whether a failure of loading is the one that ended the program."""
    return one.type_name in (end.type_name, "") or one.type_name in end.message or end.message[:40] in one.message


def loader_of(watched: ProgramFacts, failure: WatchedFailure) -> WatchedLoader | None:
    """The loader whose sample or batch failed. Each process of the program numbers its own loaders."""
    same_number = [one for one in watched.loaders if one.number == failure.loader]
    of_process = (one for one in same_number if failure.pid in (one.pid, *one.worker_pids))
    return next(of_process, same_number[0] if same_number else None)


def failure_words(failure: WatchedFailure) -> str:
    """The exception in one line."""
    return exception_line(failure.type_name, failure.message)[:200]


def has_errno(failure: WatchedFailure, number: int) -> bool:
    """Whether a failure has this error number, or the system's message for it."""
    return failure.errno == number or os.strerror(number) in failure.message


def where_failed(failure: WatchedFailure) -> str:
    """Which process failed, and in which sample."""
    who = f"worker {failure.worker}" if failure.worker >= 0 else "the program"
    return f"{who} in sample {short_index(failure.index)}" if failure.index else f"{who}"


def short_index(index: str) -> str:
    """An index for a message; that of a whole batch may be long."""
    return index if len(index) <= LONGEST else f"{index[:LONGEST].rpartition(',')[0]}, ...]"
