"""Which processes belong to one training: the main process or the ranks, their workers, and what those started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from unjam.system.descriptor_owners import Owners
from unjam.system.process_table import Entry, Rest, Table, children, descendants, entry, environment, everyone, rank_in
from unjam.system.waiting import read_text

_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "unjam.loader.worker.server",
)
# variables that are the same for all ranks of a job
_MEETINGS = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_STEP_ID", "OMPI_COMM_WORLD_JOBID")
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


def is_helper(one: Entry, table: Table | None = None) -> bool:
    """Whether a process only serves multiprocessing; a child of the fork server has the server's command and does not."""
    parent = (table.get(one.parent) if table is not None else None) or entry(one.parent)
    if parent is not None and parent.command == one.command:
        return False
    return any(mark in word for word in one.command for mark in _HELPERS)


def is_worker_like(one: Entry, table: Table) -> bool:
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


def _kids(one: Entry, table: Table) -> list[Entry]:
    """The children that do its work; those of a fork server are its own."""
    found = []
    for kid in children(table, one.pid):
        found += children(table, kid.pid) if is_helper(kid, table) else [kid]
    return found


def _mains(one: Entry, table: Table) -> list[Entry]:
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


def families_of(pid: int) -> list[Family]:
    """The program that a process belongs to, be it a main process, a worker or what started them; several of a launcher's."""
    table = everyone()
    one = table.get(pid)
    if one is None:
        return []
    while is_helper(one, table) or (is_worker_like(one, table) and not _is_rank(one, table)):
        above = table.get(one.parent)
        if above is None or not above.is_python:
            break
        one = above
    mains = _mains(one, table)
    if mains in ([], [one]):
        return [_family(one, _with_other_ranks(one, table), table)]
    return [_family(one, job, table) for job in _jobs(mains, table)]


def _with_other_ranks(one: Entry, table: Table) -> list[Entry]:
    """A main process, and those of its siblings that are ranks of the same job."""
    launcher = table.get(one.parent)
    if launcher is None or not launcher.is_python:
        return [one]
    owners = Owners()
    others = [main for main in _mains(launcher, table) if main.pid != one.pid and _same_job(one, main, table, owners)]
    return sorted([one, *others], key=lambda main: main.pid)


def _jobs(mains: list[Entry], table: Table) -> list[list[Entry]]:
    """Main processes in groups: those of one job together. Programs that only have the same parent are apart."""
    jobs: list[list[Entry]] = []
    owners = Owners() if len(mains) > 1 else None
    for main in mains:
        job = next(
            (job for job in jobs if owners and any(_same_job(main, other, table, owners) for other in job)), None
        )
        if job is None:
            jobs.append([main])
        else:
            job.append(main)
    return jobs


def _same_job(one: Entry, other: Entry, table: Table, owners: Owners) -> bool:
    if one.parent == other.parent and is_worker_like(one, table) and is_worker_like(other, table):
        return True
    mine, its = (environment(main.pid) for main in (one, other))
    if any(name in mine and mine.get(name) == its.get(name) for name in _MEETINGS) and rank_in(mine) != rank_in(its):
        return True
    return other.pid in owners.connected(one.pid)


def _is_rank(one: Entry, table: Table) -> bool:
    return not one.name.startswith(("pt_", "unjam-")) and any(is_worker_like(kid, table) for kid in _kids(one, table))


def _family(root: Entry, mains: list[Entry], table: Table) -> Family:
    tops = [root] if len(mains) == 1 and mains[0] is root else mains
    below = [one for top in tops for one in descendants(table, top.pid) if one not in mains and one.pid != os.getpid()]
    pids = {main.pid for main in mains}
    workers = [one for one in below if is_worker_like(one, table) and _belongs(one, pids, table)]
    return Family(root, tuple(mains), tuple(workers), tuple(one for one in below if one not in workers))


def _belongs(one: Entry, mains: set[int], table: Table) -> bool:
    parent = table.get(one.parent)
    if parent is not None and is_helper(parent, table):
        parent = table.get(parent.parent)
    return parent is not None and parent.pid in mains


def families() -> list[Family]:
    """Every program of this machine that looks like a training with data workers, those at rest for longest first."""
    table = everyone()
    mine = _ancestors(os.getpid(), table)
    mains: dict[int, Entry] = {}
    for one in table.values():
        named = one.name.startswith(("pt_data_worker", "unjam-worker"))
        if not named and not (one.is_python and is_worker_like(one, table) and _uses_torch(one.pid)):
            continue
        main = table.get(one.parent)
        while main is not None and is_helper(main, table):
            main = table.get(main.parent)
        if main is not None and main.is_python and main.pid not in mine and main.pid > 1:
            mains[main.pid] = main
    # a main process below another one is part of it
    tops = [main for main in mains.values() if not _ancestors(main.parent, table) & set(mains)]
    found = [_family(job[0], job, table) for job in _jobs(tops, table)]
    return sorted(found, key=lambda one: -one.rested)


def _ancestors(pid: int, table: Table) -> set[int]:
    found = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
