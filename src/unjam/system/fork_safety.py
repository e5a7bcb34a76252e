"""Whether a fork of this process is safe now.

A fork copies memory and one thread. A lock that another thread holds at that moment stays locked in
the child, and a pool of native threads has no threads there. So a fork is safe only without other
Python threads (any of them may hold any lock, even the logging lock or the import lock), without an
accelerator in use, and without busy native threads. Native threads that wait belong to idle pools;
a worker's thread limits keep it from calling into those.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

from unjam.system.proc_files import read_text, stat_fields, thread_ids
from unjam.units import count


def risks(facts: ForkFacts | None = None) -> list[str]:
    """Why a fork of this process is not safe; empty if it is. By default according to the facts now."""
    facts = facts or collect_facts()
    reasons = []
    if facts.python_threads:
        names = ", ".join(facts.python_threads[:3]) + (" …" if len(facts.python_threads) > 3 else "")
        running = count(len(facts.python_threads), "other Python thread is", "other Python threads are")
        reasons.append(f"{running} running ({names})")
    if facts.accelerator is not None:
        reasons.append(f"{facts.accelerator} is in use, and cannot be used in a forked process")
    if facts.busy_native:
        reasons.append(f"native threads are busy ({', '.join(facts.busy_native[:3])})")
    return reasons


@dataclass(frozen=True, slots=True)
class ForkFacts:
    """The state of this process, as far as it matters for a fork.

    busy_native: threads that Python did not start and that are not waiting. One of them may hold a
        lock, which would then stay locked in the child.
    """

    python_threads: tuple[str, ...]
    native_threads: int
    busy_native: tuple[str, ...]
    accelerator: str | None


def collect_facts() -> ForkFacts:
    """The facts about this process now."""
    me = threading.current_thread()
    others = [thread for thread in threading.enumerate() if thread is not me and thread.is_alive()]
    known = {thread.native_id for thread in others} | {threading.get_native_id()}
    native, busy = 0, []
    for task in thread_ids("self"):
        if task in known:
            continue
        native += 1
        fields = stat_fields(f"self/task/{task}")
        if fields and fields[0] not in ("S", "I", "Z"):
            busy.append(read_text(f"/proc/self/task/{task}/comm").rstrip("\n"))
    return ForkFacts(tuple(t.name for t in others), native, tuple(busy), _accelerator())


def _accelerator() -> str | None:
    torch = sys.modules.get("torch")
    return "CUDA" if torch is not None and torch.cuda.is_initialized() else None
