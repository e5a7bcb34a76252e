"""A child process and the program deadlock on a pipe.

What happened: the program reads one pipe of a child process, or waits for it to end, while the child waits for space in another
pipe that is not being read, stderr for example. Both wait forever.

Why: a pipe holds 64 KB. With `stderr=PIPE` the program must read stderr while it reads stdout. The other direction can deadlock
too: a child that reads its input to the end waits forever while any process still has the write end of the pipe open: the program
itself, or workers that were forked in the meantime.

How to confirm: it works as long as the child writes little.

How to fix: use `subprocess.run(..., capture_output=True)` or `communicate()`, which read both; or send stderr to DEVNULL, to a
file, or to STDOUT.

Limits: the deadlock is found only in a program that is frozen.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.waits import FullPipe, InputNeverEnds
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ214", "full-pipe", symptom="frozen")


def words(one: FullPipe | InputNeverEnds) -> Words:
    """Say which process waits for which."""
    if isinstance(one, InputNeverEnds):
        return Words(
            f"{one.waiter} waits for {one.child}, which waits for the end of its input: the pipe is still open in {one.holders}",
            "close its stdin before waiting for it (communicate() does)"
            if one.own
            else "start it after the workers, or end the workers first: delete the loader's iterator, persistent_workers=False; "
            "or close the pipe in worker_init_fn",
        )
    remedy = (
        "read the queue while the workers run, not afterwards: a worker ends only when everything it has put is read"
        if one.queue
        else f"read what {one.writer} sends (queue.get(), recv(), communicate()) before waiting for it to end"
        if one.at_end
        else "read both pipes with communicate(), or give the child stderr=subprocess.DEVNULL (or a file)"
    )
    return Words(
        f"{one.writer} cannot write to a full pipe that only {one.reader} reads, and {one.reader} waits for it at {one.place}",
        remedy,
    )
