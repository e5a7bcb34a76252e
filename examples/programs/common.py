"""Helpers of the small programs: which loader to use, and how to report."""

from __future__ import annotations

import json
import os
import sys
import time

import torch.utils.data


def loader_class():
    """The DataLoader named on the command line."""
    if sys.argv[1] == "unjam":
        import unjam

        return unjam.DataLoader
    return torch.utils.data.DataLoader


def workers_memory() -> int:
    """Bytes of memory of all workers, shared pages counted once."""
    total = 0
    for pid in _descendants(os.getpid()):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
        except OSError:
            continue
    return total


def _descendants(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(entry), *_descendants(int(entry))]
    return found


def report(**facts) -> None:
    """Print the result for the table."""
    print(json.dumps(facts), flush=True)


def clock() -> float:
    return time.perf_counter()
