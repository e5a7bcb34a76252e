"""What an object of the program was like: a lock, a queue, a file, a large container."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectState:
    """The state of one object; which fields say something depends on its kind.

    kind: "lock", "queue", "executor", "thread", "loop", "future", "event", "barrier", "condition" or "child", where code
    waits for it. locked: None if it does not tell. owner: of a lock, as it prints itself. call: what the waiting line calls.
    left_alone: the attribute that is only read as a whole.
    """

    kind: str = ""
    between_processes: bool = False
    locked: bool | None = None
    owner: str = ""
    mine: bool = True
    call: str = ""
    empty: bool = False
    full: bool = False
    alive: int = 1
    done: bool = False
    parties: int = 0
    waiting: int = 0
    fd: int | None = None
    target: str = ""
    mode: str = ""
    count: int = 0
    nbytes: int = 0
    mapped: bool = False
    left_alone: str = ""


NOTHING_KNOWN = ObjectState()
