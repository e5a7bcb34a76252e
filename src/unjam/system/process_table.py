"""The processes of this machine, from /proc: parent, command, and how long a thread has been idle."""

from __future__ import annotations

import functools
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from unjam.system.limits import processor_seconds
from unjam.system.masking import masked_words
from unjam.system.proc_files import field, is_number, read_text, stat_fields

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_LAST_RUN = re.compile(r"exec_start\s*:\s*(\d{1,20}(?:\.\d{1,9})?)\b")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, a flag in /proc/PID/stat


def is_kernel_thread(pid: int) -> bool:
    """Whether a process number belongs to the kernel itself."""
    fields = stat_fields(pid)
    return len(fields) > 6 and bool(int(fields[6]) & _KERNEL_THREAD)


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process at one moment.

    age: seconds since it started. cpu: seconds of processor time so far.
    born: when it started, in seconds since the machine started.
    """

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]
    state: str
    cpu: float
    age: float
    rss: int
    threads: int
    born: float = 0.0

    @property
    def is_python(self) -> bool:
        """Whether it runs Python, by its names; torch renames its workers to "pt_..."."""
        words = [self.name, os.path.basename(self.command[0]) if self.command else "", executable_name(self.pid)]
        return any(word.startswith(("python", "pypy", "ipython", "jupyter", "pt_", "torchrun")) for word in words)

    @property
    def line(self) -> str:
        """The command line without secrets, at most 100 characters."""
        text = " ".join(" ".join(masked_words(self.command)).split()) or f"[{self.name}]"
        return text if len(text) <= 100 else text[:99] + "…"


def executable_name(pid: int) -> str:
    """The name of a process's executable file; empty if unknown."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def ignores_signal(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    return _in_mask(pid, "SigIgn", number)


def catches_signal(pid: int, number: int) -> bool:
    """Whether a process has installed a handler for a signal."""
    return _in_mask(pid, "SigCgt", number)


def _in_mask(pid: int, name: str, number: int) -> bool:
    words = field(f"/proc/{pid}/status", name)
    return bool(words) and bool(int(words[0], 16) >> (number - 1) & 1)


def entry(pid: int) -> ProcessEntry | None:
    """One process, or None if there is no such process."""
    head, _, tail = read_text(f"/proc/{pid}/stat").rpartition(")")
    fields = tail.split()
    if len(fields) < 22 or not all(_WHOLE.fullmatch(fields[at]) for at in (1, 11, 12, 17, 19, 21)):
        return None
    uptime = _first_number(read_text("/proc/uptime"))
    command = tuple(word for word in read_text(f"/proc/{pid}/cmdline").split("\0") if word)
    born = int(fields[19]) / _TICK
    return ProcessEntry(
        pid,
        int(fields[1]),
        head.partition("(")[2],
        command,
        fields[0],
        (int(fields[11]) + int(fields[12])) / _TICK,
        max(0.0, uptime - born),
        int(fields[21]) * _PAGE,
        int(fields[17]),
        born,
    )


def _first_number(text: str) -> float:
    """The number that a text begins with; 0 if there is none."""
    found = re.match(r"\s*(\d{1,15}(?:\.\d{1,9})?)\b", text, re.ASCII)
    return float(found[1]) if found else 0.0


class Table(dict[int, ProcessEntry]):
    """Processes by their process number."""

    @functools.cached_property
    def by_parent(self) -> dict[int, list[ProcessEntry]]:
        """Every process's children, oldest first."""
        found: dict[int, list[ProcessEntry]] = {}
        for one in sorted(self.values(), key=lambda one: (one.born, one.pid)):
            found.setdefault(one.parent, []).append(one)
        return found


def all_processes() -> Table:
    """Every process that is visible from here."""
    found = Table()
    for name in os.listdir("/proc"):
        if is_number(name):
            one = entry(int(name))
            if one is not None:
                found[one.pid] = one
    return found


def children(table: Table, pid: int) -> list[ProcessEntry]:
    """The children of a process, oldest first."""
    return table.by_parent.get(pid, [])


def descendants(table: Table, pid: int) -> list[ProcessEntry]:
    """A process's children, their children, and so on."""
    found = []
    for one in children(table, pid):
        found += [one, *descendants(table, one.pid)]
    return found


class IdleClock:
    """Measures how long a thread has been idle, from the kernel's record of when it last ran.

    Each processor uses its own clock for that record, and the clock stops while the processor serves
    interrupts or another guest of the same host. So we move our own thread to the processor that the
    other thread last ran on, and compare the clocks there.
    """

    def __init__(self) -> None:
        self._ahead: dict[int, float | None] = {}
        self._lock = threading.Lock()

    def seconds(self, pid: int, tid: int) -> float | None:
        """Seconds since a thread last ran, or None if unknown."""
        last = _LAST_RUN.search(read_text(f"/proc/{pid}/task/{tid}/sched"))
        fields = stat_fields(f"{pid}/task/{tid}")
        if last is None or len(fields) < 37 or not is_number(fields[36]):
            return None
        ahead = self._ahead_of(int(fields[36]))
        return max(0.0, time.monotonic() - float(last[1]) / 1000 - ahead) if ahead is not None else None

    def _ahead_of(self, number: int) -> float | None:
        """How many seconds our clock is ahead of a processor's clock; None if unknown."""
        with self._lock:
            if number not in self._ahead:
                self._ahead[number] = _measure_ahead(number)
            return self._ahead[number]


def _measure_ahead(processor: int) -> float | None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {processor})
    except (OSError, ValueError):
        return None
    try:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:  # long enough for the kernel to record this thread
            pass
        mine = _LAST_RUN.search(read_text("/proc/thread-self/sched"))
        return time.monotonic() - float(mine[1]) / 1000 if mine else None
    finally:
        os.sched_setaffinity(0, allowed)


def processor_time(pid: int, tid: int) -> float:
    """Seconds of processor time of one thread, from the most precise counter available."""
    fine = read_text(f"/proc/{pid}/task/{tid}/schedstat").split()
    if fine and _WHOLE.fullmatch(fine[0]):
        return int(fine[0]) / 1e9
    return processor_seconds(f"{pid}/task/{tid}")


def queueing_time(pid: int, tid: int) -> float:
    """Seconds that one thread was ready to run but had no processor; 0 if unknown."""
    fine = read_text(f"/proc/{pid}/task/{tid}/schedstat").split()
    return int(fine[1]) / 1e9 if len(fine) > 1 and _WHOLE.fullmatch(fine[1]) else 0.0


def voluntary_switches(pid: int, tid: int) -> int:
    """How often a thread has given up its processor to wait for something."""
    return int(_first_number(" ".join(field(f"/proc/{pid}/task/{tid}/status", "voluntary_ctxt_switches"))))


RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def rank_in(variables: Mapping[str, str]) -> str:
    """The rank that a launcher gave a process; empty if there is none."""
    return next((variables[name] for name in RANKS if is_number(variables.get(name, ""))), "")


def environment(pid: int) -> dict[str, str]:
    """The variables that a process was started with; empty if we may not read them."""
    pairs = (word.partition("=") for word in read_text(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, _, value in pairs if name}
