"""Limits: a resource that the system, the container or the program itself limits is used up."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.faults import LimitChange, WatchedFailure
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import filled_at
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.queries import failures

# error number -> the limits that may have been reached
_LIMITS = {
    errno.EFBIG: ("RLIMIT_FSIZE",),
    errno.EMFILE: ("RLIMIT_NOFILE",),
    errno.ENOMEM: ("RLIMIT_AS", "RLIMIT_DATA"),
    errno.EAGAIN: ("RLIMIT_NPROC",),
}
_WORDS = {
    "RLIMIT_FSIZE": "the size of a file",
    "RLIMIT_NOFILE": "the number of open files",
    "RLIMIT_AS": "the memory of a process",
    "RLIMIT_DATA": "the memory of a process",
    "RLIMIT_NPROC": "the number of processes and threads of a user",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached(Explanation):
    """A limit of the process. what: what it limits. name: e.g. RLIMIT_FSIZE. own: the program set it itself.

    keeper: the container that samples fill until the limit is reached.
    """

    keeper: str
    name: str
    what: str
    value: int
    own: bool
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSpaceLeft(Explanation):
    """A file system (culprit) has no space or no inodes left. what: what is used up."""

    what: str
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Explain a failure whose error says that a resource is used up."""
    failure = failures.fatal_failure(known)
    if failure is None:
        return
    for number, names in _LIMITS.items():
        if failures.has_errno(failure, number) or (number == errno.ENOMEM and failure.type_name == "MemoryError"):
            found = next((name for name in names if name in failure.limits), "")
            limit = _limit(known, failure, found) if found else None
            if limit is not None and (
                (limit.own and not _leaks(known, failure)) or number != errno.EMFILE
            ):  # what opens too many files says more than the limit
                yield limit
                return
    # UJ401 counts the shared memory that batches need, which says more than that it is full
    full = [(path, what) for path, what in failure.full if path != "/dev/shm"]
    if (failures.has_errno(failure, errno.ENOSPC) or failures.has_errno(failure, errno.EDQUOT)) and full:
        path, what = full[0]
        yield NoSpaceLeft(
            culprit=path,
            place=failure.place,
            because=(failures.failure_words(failure), f"{path}: {what} are in use"),
            what=what,
            failed=failures.where_failed(failure),
            accounts_for=("raised", "died"),
        )


def _limit(known: Knowledge, failure: WatchedFailure, name: str) -> LimitReached:
    made = [one for process in known.watched.processes for one in process.limit_changes if one.name == name]
    last: LimitChange | None = made[-1] if made else None
    value = failure.limits[name]
    place = last.place if last is not None else failure.place
    keeper, filled = _keeper(known, failure, name, value)
    return LimitReached(
        culprit=keeper or (f"{name} at {place}" if last is not None else name),
        place=filled or place,
        keeper=keeper,
        because=(
            failures.failure_words(failure),
            f"{keeper} keeps part of almost every sample; measured without workers" if keeper else "",
            f"filled at {quoted(filled)}" if filled is not None else "",
            f"{name} of the failed process is {value:,}",
            f"the program sets it at {quoted(last.place)}; workers inherit it" if last is not None else "",
        ),
        basis=AGREES if last is not None else SUGGESTED,
        name=name,
        what=_WORDS[name],
        value=value,
        own=last is not None,
        failed=failures.where_failed(failure),
        accounts_for=("raised", "died"),
    )


KEEPS, KEPT_SHARE = 0.3, 0.05  # items per sample; bytes, as a share of a memory limit


def _keeper(known: Knowledge, failure: WatchedFailure, name: str, value: int) -> tuple[str, Place | None]:
    """The container that grows with the samples and can reach the limit, and the line that fills it."""
    loader = failures.loader_of(known.watched, failure)
    case = known.case_of(loader)
    if (
        loader is None
        or case is None
        or case.alone is None
        or name not in ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_DATA")
    ):
        return "", None
    loaded = max(1, len(case.alone.samples))
    for path, (added, nbytes, _) in case.alone.dataset_changes.kept.items():
        if path in case.alone.dataset_changes.bounded:
            continue
        if added >= KEEPS * loaded if name == "RLIMIT_NOFILE" else added * nbytes >= KEPT_SHARE * value:
            return path, filled_at(loader.description.files, path.rpartition(".")[2])
    return "", None


def _leaks(known: Knowledge, failure: WatchedFailure) -> bool:
    """Whether the failed process kept opening descriptors: then what keeps them open says more than the limit."""
    moments = [
        one.descriptors
        for loader in known.watched.loaders
        for epoch in loader.epochs
        for one in epoch.usage
        if one.worker == failure.worker
    ]
    return len(moments) > 1 and moments[-1] - moments[0] > LEAKS * failure.limits.get("RLIMIT_NOFILE", 1 << 20)


LEAKS = 0.3  # of the limit
