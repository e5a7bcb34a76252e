"""A limit of the process or of a file system is reached.

What happened: the system refused an operation because a limit was reached: the size of a file, the number of processes,
the memory of a process, the space or the number of files of a file system. Workers inherit the limits that the program sets for
itself.

Why: a segment of shared memory is a file, and a worker is a process: a limit that was meant for a log or a script applies to
them too.

How to confirm: raise the limit (`ulimit`, `resource.setrlimit`), or look at `df -i`.

How to fix: set the limit only where it is intended, in a child process for example, or raise it.

Limits: the limit is inferred from the error and from the limits of the process that failed.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.limits import LimitReached, NoSpaceLeft
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ411", "limit-reached", symptom="raised")


def words(one: LimitReached | NoSpaceLeft) -> Words:
    """Say which limit was reached, and what set it."""
    if isinstance(one, NoSpaceLeft):
        return Words(
            f"{one.culprit} is full: {one.what} are used up, and {one.failed} fails",
            f"free space in {one.culprit}, or write elsewhere (TMPDIR)",
        )
    if one.keeper:
        return Words(
            f"{one.keeper} keeps what samples open or load, until {one.failed} needs more than {one.name} allows ({one.value:,})",
            f"limit the size of {one.keeper}, and close what is removed from it; each worker fills its own copy",
        )
    who = "the program limits" if one.own else "the system limits"
    return Words(
        f"{who} {one.what} to {one.value:,} ({one.name}), and {one.failed} needs more",
        f"raise {one.name}, or set it only in the process that needs it"
        + (f" (set at {one.place})" if one.own else " (ulimit)"),
    )
