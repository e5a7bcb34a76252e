"""Several workers write one file.

What happened: each worker writes into the file that the program opened before the workers were forked. Lines are torn,
repeated or missing.

Why: a forked worker has a copy of the buffer of an open file, with all that was not flushed, and one position in the file with
all other processes. When a worker ends, what is left in its buffer is lost.

How to confirm: count the lines, and look for lines that are not whole.

How to fix: return what is to be written with the sample, and write it in the loop; or give each worker a file of its own, with its
number in the name.

Limits: only files that the dataset holds are looked at, and none that are opened to append: small lines arrive whole.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.conflicting_writes import OnePathForAll, SeveralWriters
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ537", "several-writers")
NAMES = (SeveralWriters, OnePathForAll)


def words(one: SeveralWriters | OnePathForAll) -> Words:
    """Say which file, and how it goes wrong."""
    if isinstance(one, OnePathForAll):
        return Words(
            f"{one.workers} workers write and read the same file, {one.path}"
            + (f": {one.failed}" if one.failed else ""),
            "write to a temporary file and os.replace() it when it is whole; or give each sample or worker a file of its own",
        )
    return Words(
        f"{one.workers} workers write {one.path} through one open file, each with its own copy of the buffer",
        "return what is to be written with the sample, and write it in the loop over the loader; or one file for each worker",
    )
