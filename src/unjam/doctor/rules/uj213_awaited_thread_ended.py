"""The program waits for a thread or helper process that has ended with an exception.

What happened: the program waits for a queue, a condition, a pool or a future; the thread or process that would serve it has
ended with an exception. The only trace of that is a traceback on stderr.

Why: an exception ends only its own thread or process. A `Condition`, a `Queue` or a `multiprocessing.Pool` does not detect that the
other side has ended.

How to confirm: the traceback of the thread or process is in what the program printed.

How to fix: catch the exception in the thread and pass it on (put it into the queue, `future.set_exception`), or close the queue in
a `finally`. In a pool, raise an exception that can be pickled instead of calling `sys.exit`.

Limits: only threads and processes that Python started are examined.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.ended_peers import PeerEnded
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ213", "awaited-thread-ended", symptom="frozen")


def words(one: PeerEnded) -> Words:
    """Say which thread or process has ended, and which one waits."""
    return Words(
        f"{one.what} {one.name!r} has ended with {one.raised}, and {one.waits} for its answer",
        "fix what raised it; and pass exceptions on to the waiting side: put them into the queue, or close it in a `finally`",
    )
