"""Whether a fork of this process is safe now.

A fork copies memory and one thread. A lock that another thread holds at that moment stays locked in the child, and a
pool of native threads has lost its threads there. So: no other Python thread (any of them may hold any lock, the logging
lock and the import lock included), no accelerator in use, and no native thread that is at work. Native threads that wait
are idle pools; a worker's hygiene keeps it from calling into those.
"""

from __future__ import annotations

from dataclasses import dataclass

from unjam.evidence.forking import ForkFacts, look


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement, with its reasons."""

    safe: bool
    reasons: tuple[str, ...]


def fork_now() -> Verdict:
    """Judge this process as it is now."""
    return judge(look())


def judge(facts: ForkFacts) -> Verdict:
    """Judge any facts."""
    reasons = []
    if facts.python_threads:
        names = ", ".join(facts.python_threads[:3]) + (" …" if len(facts.python_threads) > 3 else "")
        reasons.append(f"{_count(len(facts.python_threads), 'other Python thread')} runs ({names})")
    if facts.accelerator is not None:
        reasons.append(f"{facts.accelerator} is in use, and cannot be used in a forked process")
    if facts.busy_native:
        reasons.append(f"native threads are at work ({', '.join(facts.busy_native[:3])})")
    return Verdict(not reasons, tuple(reasons))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")
