"""Finds the processes of one training: main process or ranks, their workers and other children."""

from __future__ import annotations

import os
from dataclasses import dataclass

from unjam.system.descriptor_owners import Owners
from unjam.system.proc_files import read_text
from unjam.system.process_table import (
    IdleClock,
    ProcessEntry,
    Table,
    all_processes,
    children,
    descendants,
    entry,
    environment,
    rank_in,
)

_HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "multiprocessing.forkserver",
    "unjam.loader.worker.server",
)
# environment variables that have the same value in all ranks of a job
_JOB_KEYS = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_STEP_ID", "OMPI_COMM_WORLD_JOBID")
_SPAWN_MARKS = ("multiprocessing.spawn", "multiprocessing-fork")


@dataclass(frozen=True, slots=True)
class Family:
    """One program: its main processes and all their descendants."""

    root: ProcessEntry
    mains: tuple[ProcessEntry, ...]
    workers: tuple[ProcessEntry, ...]
    others: tuple[ProcessEntry, ...]

    @property
    def rested(self) -> float:
        """The longest time in seconds that a worker (else a main process) has not run."""
        clock = IdleClock()
        return max((clock.seconds(one.pid, one.pid) or 0.0 for one in self.workers or self.mains), default=0.0)


def is_helper(one: ProcessEntry, table: Table | None = None) -> bool:
    """Whether a process is a server of multiprocessing or unjam, such as the fork server.

    A child of the fork server has the server's command line, but is not a helper.
    """
    parent = (table.get(one.parent) if table is not None else None) or entry(one.parent)
    if parent is not None and parent.command == one.command:
        return False
    return any(mark in word for word in one.command for mark in _HELPERS)


def is_worker_like(one: ProcessEntry, table: Table) -> bool:
    """Whether a process looks like a child of multiprocessing, by its name and command line."""
    if one.name.startswith(("pt_data_worker", "unjam-worker")):
        return True
    if is_helper(one, table) or one.state == "Z":
        return False
    if any(mark in word for word in one.command for mark in _SPAWN_MARKS):
        return True
    parent = table.get(one.parent)
    if parent is None or not parent.is_python or not one.is_python:
        return False
    # the same command line: forked without exec, by the parent or by the fork server
    return one.command == parent.command


def _own_children(one: ProcessEntry, table: Table) -> list[ProcessEntry]:
    """Return the children of a process; for a fork server, the server's children instead."""
    found = []
    for child in children(table, one.pid):
        found += children(table, child.pid) if is_helper(child, table) else [child]
    return found


def _mains(one: ProcessEntry, table: Table) -> list[ProcessEntry]:
    """Return the main processes among a process and its descendants."""
    own_children = _own_children(one, table)
    if one.name.startswith(("pt_data_worker", "unjam-worker")) or is_helper(one, table):
        return []
    below = [
        main
        for child in own_children
        if not is_worker_like(child, table)
        or any(is_worker_like(inner, table) for inner in _own_children(child, table))
        for main in _mains(child, table)
    ]
    if any(child.name.startswith(("pt_data_worker", "unjam-worker")) for child in own_children):
        return [one, *below]
    if one.is_python and any(is_worker_like(child, table) for child in own_children) and not below:
        return [one]
    if below:
        ranks = [
            child for child in own_children if child.is_python and not is_helper(child, table) and child not in below
        ]
        return sorted([*below, *(rank for rank in ranks if _uses_torch(rank.pid))], key=lambda main: main.pid)
    return [one] if one.is_python and _uses_torch(one.pid) else []


def _uses_torch(pid: int) -> bool:
    return "libtorch" in read_text(f"/proc/{pid}/maps")


def families_of(pid: int) -> list[Family]:
    """Return the program that a process belongs to.

    The process may be a main process, a worker, or a launcher, which can have several programs.
    """
    table = all_processes()
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


def _with_other_ranks(one: ProcessEntry, table: Table) -> list[ProcessEntry]:
    """Return a main process and its siblings that are ranks of the same job."""
    launcher = table.get(one.parent)
    if launcher is None or not launcher.is_python:
        return [one]
    owners = Owners()
    others = [main for main in _mains(launcher, table) if main.pid != one.pid and _same_job(one, main, table, owners)]
    return sorted([one, *others], key=lambda main: main.pid)


def _jobs(mains: list[ProcessEntry], table: Table) -> list[list[ProcessEntry]]:
    """Group main processes by job. Having the same parent alone does not make them one job."""
    jobs: list[list[ProcessEntry]] = []
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


def _same_job(one: ProcessEntry, other: ProcessEntry, table: Table, owners: Owners) -> bool:
    if one.parent == other.parent and is_worker_like(one, table) and is_worker_like(other, table):
        return True
    mine, its = (environment(main.pid) for main in (one, other))
    if any(name in mine and mine.get(name) == its.get(name) for name in _JOB_KEYS) and rank_in(mine) != rank_in(its):
        return True
    return other.pid in owners.connected(one.pid)


def _is_rank(one: ProcessEntry, table: Table) -> bool:
    return not one.name.startswith(("pt_", "unjam-")) and any(
        is_worker_like(child, table) for child in _own_children(one, table)
    )


def _family(root: ProcessEntry, mains: list[ProcessEntry], table: Table) -> Family:
    tops = [root] if len(mains) == 1 and mains[0] is root else mains
    below = [one for top in tops for one in descendants(table, top.pid) if one not in mains and one.pid != os.getpid()]
    pids = {main.pid for main in mains}
    workers = [one for one in below if is_worker_like(one, table) and _belongs(one, pids, table)]
    return Family(root, tuple(mains), tuple(workers), tuple(one for one in below if one not in workers))


def _belongs(one: ProcessEntry, mains: set[int], table: Table) -> bool:
    parent = table.get(one.parent)
    if parent is not None and is_helper(parent, table):
        parent = table.get(parent.parent)
    return parent is not None and parent.pid in mains


def families() -> list[Family]:
    """Return every program that looks like a training with data workers, longest idle first."""
    table = all_processes()
    mine = _ancestors(os.getpid(), table)
    mains: dict[int, ProcessEntry] = {}
    for one in table.values():
        named = one.name.startswith(("pt_data_worker", "unjam-worker"))
        if not named and not (one.is_python and is_worker_like(one, table) and _uses_torch(one.pid)):
            continue
        main = table.get(one.parent)
        while main is not None and is_helper(main, table):
            main = table.get(main.parent)
        if main is not None and main.is_python and main.pid not in mine and main.pid > 1:
            mains[main.pid] = main
    # a main process below another one belongs to it
    tops = [main for main in mains.values() if not _ancestors(main.parent, table) & set(mains)]
    found = [_family(job[0], job, table) for job in _jobs(tops, table)]
    return sorted(found, key=lambda one: -one.rested)


def _ancestors(pid: int, table: Table) -> set[int]:
    found = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
