"""Which processes belong to one training: the main process or the ranks, their workers, and what those started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from unjam.evidence.table import Entry, Rest, children, descendants, entry, everyone
from unjam.evidence.waiting import read_text

_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "unjam.worker.server",
)
_BORN_BY_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing-fork")


@dataclass(frozen=True, slots=True)
class Family:
    """One program: its main processes, and everything below them."""

    root: Entry
    mains: tuple[Entry, ...]
    workers: tuple[Entry, ...]
    others: tuple[Entry, ...]

    @property
    def rested(self) -> float:
        """For how long the one that has rested longest of its workers, or of its main processes, has not run."""
        clock = Rest()
        return max((clock.of(one.pid, one.pid) or 0.0 for one in self.workers or self.mains), default=0.0)


def is_helper(one: Entry, table: dict[int, Entry] | None = None) -> bool:
    """Whether a process only serves multiprocessing; a child of the fork server has the server's command and does not."""
    parent = (table or {}).get(one.parent) or entry(one.parent)
    if parent is not None and parent.command == one.command:
        return False
    return any(mark in word for word in one.command for mark in _HELPERS)


def is_worker_like(one: Entry, table: dict[int, Entry]) -> bool:
    """Whether a process was started as multiprocessing starts its children, as far as its name and command tell."""
    if one.name.startswith(("pt_data_worker", "unjam-worker")):
        return True
    if is_helper(one, table) or one.state == "Z":
        return False
    if any(mark in word for word in one.command for mark in _BORN_BY_MULTIPROCESSING):
        return True
    parent = table.get(one.parent)
    if parent is None or not parent.is_python or not one.is_python:
        return False
    # forked and never another program since; a child of the fork server has the server's command
    return one.command == parent.command


def _kids(one: Entry, table: dict[int, Entry]) -> list[Entry]:
    """The children that do its work; those of a fork server are its own."""
    found = []
    for kid in children(table, one.pid):
        found += children(table, kid.pid) if is_helper(kid, table) else [kid]
    return found


def _mains(one: Entry, table: dict[int, Entry]) -> list[Entry]:
    """The main processes at or below a process."""
    kids = _kids(one, table)
    if one.name.startswith(("pt_data_worker", "unjam-worker")) or is_helper(one, table):
        return []
    below = [
        main
        for kid in kids
        if not is_worker_like(kid, table) or any(is_worker_like(inner, table) for inner in _kids(kid, table))
        for main in _mains(kid, table)
    ]
    if any(kid.name.startswith(("pt_data_worker", "unjam-worker")) for kid in kids):
        return [one, *below]
    if one.is_python and any(is_worker_like(kid, table) for kid in kids) and not below:
        return [one]
    if below:
        ranks = [kid for kid in kids if kid.is_python and not is_helper(kid, table) and kid not in below]
        return sorted([*below, *(rank for rank in ranks if _uses_torch(rank.pid))], key=lambda main: main.pid)
    return [one] if one.is_python and _uses_torch(one.pid) else []


def _uses_torch(pid: int) -> bool:
    return "libtorch" in read_text(f"/proc/{pid}/maps")


def family_of(pid: int) -> Family | None:
    """The program that a process belongs to, whether it is a main process, a worker or what started them."""
    table = everyone()
    one = table.get(pid)
    if one is None:
        return None
    while (is_worker_like(one, table) or is_helper(one, table)) and not _is_rank(one, table):
        above = table.get(one.parent)
        if above is None or not above.is_python:
            break
        one = above
    launcher = table.get(one.parent)
    if launcher is not None and launcher.is_python and len(_mains(launcher, table)) > 1:
        one = launcher  # the other ranks belong to it
    return _family(one, table)


def _is_rank(one: Entry, table: dict[int, Entry]) -> bool:
    return not one.name.startswith(("pt_", "unjam-")) and any(is_worker_like(kid, table) for kid in _kids(one, table))


def _family(root: Entry, table: dict[int, Entry]) -> Family:
    mains = _mains(root, table) or [root]
    below = [one for one in descendants(table, root.pid) if one not in mains and one.pid != os.getpid()]
    pids = {main.pid for main in mains}
    workers = [one for one in below if is_worker_like(one, table) and _belongs(one, pids, table)]
    return Family(root, tuple(mains), tuple(workers), tuple(one for one in below if one not in workers))


def _belongs(one: Entry, mains: set[int], table: dict[int, Entry]) -> bool:
    parent = table.get(one.parent)
    if parent is not None and is_helper(parent, table):
        parent = table.get(parent.parent)
    return parent is not None and parent.pid in mains


def families() -> list[Family]:
    """Every program of this machine that looks like a training with data workers, those at rest for longest first."""
    table = everyone()
    mine = _ancestors(os.getpid(), table)
    roots: dict[int, Entry] = {}
    for one in table.values():
        if one.pid in mine or not one.is_python:
            continue
        if one.name.startswith(("pt_data_worker", "unjam-worker")) or (
            is_worker_like(one, table) and _uses_torch(one.pid)
        ):
            root = table.get(one.parent)
            while root is not None and is_helper(root, table):
                root = table.get(root.parent)
            if root is not None and root.pid not in mine and root.pid > 1 and root.is_python:
                above = table.get(root.parent)
                ranks = (
                    above is not None and above.is_python and above.pid not in mine and len(_mains(above, table)) > 1
                )
                top = above if ranks and above is not None else root
                roots[top.pid] = top
    # a root below another is part of it
    found = [_family(root, table) for root in roots.values() if not _ancestors(root.parent, table) & set(roots)]
    return sorted((one for one in found if one.workers or one.mains), key=lambda one: -one.rested)


def _ancestors(pid: int, table: dict[int, Entry]) -> set[int]:
    found = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
