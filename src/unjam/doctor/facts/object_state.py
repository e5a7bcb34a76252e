"""The state of an object of the program: a lock, a queue, a file, a large container."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectState:
    """The state of one object; which fields are set depends on its kind.

    kind: "lock", "queue", "executor", "thread", "loop", "future", "event", "barrier", "condition" or "child", if code
    waits for it. locked: None if unknown. call: the function that the waiting line calls.
    why_not_shared: why unjam's workers cannot share a container.
    """

    kind: str = ""
    between_processes: bool = False
    locked: bool | None = None
    mine: bool = True
    call: str = ""
    empty: bool = False
    full: bool = False
    alive: int = 1
    fd: int | None = None
    target: str = ""
    count: int = 0
    nbytes: int = 0
    mapped: bool = False
    why_not_shared: str = ""


NOTHING_KNOWN = ObjectState()
