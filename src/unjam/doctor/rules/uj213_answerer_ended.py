"""A thread or helper process has ended with an exception, and the program waits for its answer.

What happened: the program waits for a queue, a condition, a pool or a future; the thread or process that would serve it has
ended with an exception. Its traceback went to stderr, and nothing else tells anybody.

Why: an exception ends only its own thread or process. A `Condition`, a `Queue` or a `multiprocessing.Pool` does not know that the
other side is gone.

How to confirm: the traceback of the thread or process is in what the program printed.

How to fix: catch the exception in the thread and pass it on (put it into the queue, `future.set_exception`), or close the queue in
a `finally`. In a pool, raise an exception that can be pickled instead of leaving by sys.exit.

Limits: only threads and processes that Python started are seen.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.ended_peers import PeerEnded
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ213", "answerer-ended", symptom="frozen")
NAMES = (PeerEnded,)


def words(one: PeerEnded) -> Words:
    """Say who has ended, and who waits."""
    return Words(
        f"{one.what} {one.name!r} has ended with {one.raised}, and {one.waits} for its answer",
        "repair what it raised; and pass exceptions on to whoever waits: put them into the queue, or close it in a `finally`",
    )
