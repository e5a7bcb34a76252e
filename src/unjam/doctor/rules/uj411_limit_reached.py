"""A limit of the process, or of a file system, is reached.

What happened: the system refused something because a limit was reached: the size of a file, the number of processes,
the memory of a process, the room or the number of files of a file system. Workers inherit the limits that the program sets for
itself.

Why: a segment of shared memory is a file too, and a worker is a process too: a limit that was meant for a log or a script
also holds for them.

How to confirm: raise the limit (`ulimit`, `resource.setrlimit`), or look at `df -i`.

How to fix: set the limit only where it is meant, in a child process for example, or higher.

Limits: which limit it was is read from the error and from the limits of the process that failed.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.limits import LimitReached, NoSpaceLeft
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ411", "limit-reached", symptom="raised")
NAMES = (LimitReached, NoSpaceLeft)


def words(one: LimitReached | NoSpaceLeft) -> Words:
    """Say which limit, and who set it."""
    if isinstance(one, NoSpaceLeft):
        return Words(
            f"{one.path} is full: {one.what} are used up; {one.failed} fails",
            f"make room in {one.path}, or write elsewhere (TMPDIR)",
        )
    if one.keeper:
        return Words(
            f"{one.keeper} keeps what samples open or load, until {one.failed} needs more than {one.name} allows: {one.value:,}",
            f"put a bound on {one.keeper}, and close what is taken out of it; each worker fills its own",
        )
    who = "the program limits" if one.own else "the system limits"
    return Words(
        f"{who} {one.what} to {one.value:,} ({one.name}), and {one.failed} needs more",
        f"raise {one.name}, or set it only in the process that it is meant for"
        + (f" (set at {one.place})" if one.own else " (ulimit)"),
    )
