"""A child cannot write into a full pipe, and who should read it waits for the child.

What happened: the program reads one pipe of a child process, or waits for its end, while the child waits for room in another pipe
that nobody reads, stderr for example. Both wait for ever.

Why: a pipe holds 64 KB. With `stderr=PIPE` somebody must read stderr while stdout is read. The same from the other side: a child
that reads its input to the end waits for ever if somebody still has the writing end of the pipe open: the program itself, or
workers that were forked meanwhile.

How to confirm: it works as long as the child writes little.

How to fix: `subprocess.run(..., capture_output=True)` or `communicate()` read both; or send stderr to DEVNULL, to a file, or to
STDOUT.

Limits: it is seen only in a program that is frozen.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.waits import FullPipe, InputNeverEnds
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ214", "full-pipe", symptom="frozen")
NAMES = (FullPipe, InputNeverEnds)


def words(one: FullPipe | InputNeverEnds) -> Words:
    """Say who waits for whom."""
    if isinstance(one, InputNeverEnds):
        return Words(
            f"{one.waiter} waits for {one.child}, which waits for the end of its input: the pipe is still open in {one.holders}",
            "close its stdin before waiting for it (communicate() does)"
            if one.own
            else "start it after the workers, or let them end before it: delete the loader's iterator, persistent_workers=False; "
            "or close the pipe in worker_init_fn",
        )
    cure = (
        "take from the queue while the workers run, not after them: a worker ends only when all that it has put is taken"
        if one.queue
        else f"read what {one.writer} sends (queue.get(), recv(), communicate()) before waiting for its end"
        if one.at_end
        else "read both pipes with communicate(), or give the child stderr=subprocess.DEVNULL (or a file)"
    )
    return Words(
        f"{one.writer} cannot write into a full pipe that only {one.reader} reads, which waits for it at {one.line}",
        cure,
    )
