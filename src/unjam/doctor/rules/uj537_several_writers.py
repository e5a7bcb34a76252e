"""Several workers write to the same file.

What happened: each worker writes to a file that the program opened before the workers were forked. Lines are torn, repeated or
missing.

Why: a forked worker has a copy of the open file's buffer, including everything that was not flushed, and shares its position in
the file with all other processes. When a worker ends, the rest of its buffer is lost.

How to confirm: count the lines, and look for incomplete lines.

How to fix: return what is to be written with the sample, and write it in the loop; or give each worker its own file, with the
worker's number in the name.

Limits: only files that the dataset holds are examined, and no files opened for appending, to which short lines are written whole.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.conflicting_writes import OnePathForAll, SeveralWriters
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ537", "several-writers")


def words(one: SeveralWriters | OnePathForAll) -> Words:
    """Say which file the workers write to, and how."""
    if isinstance(one, OnePathForAll):
        return Words(
            f"{one.workers} workers write and read the same file, {one.path}"
            + (f": {one.failed}" if one.failed else ""),
            "write to a temporary file and os.replace() it when it is complete; or give each sample or worker its own file",
        )
    return Words(
        f"{one.workers} workers write to {one.path} through one open file, each with its own copy of the buffer",
        "return what is to be written with the sample, and write it in the loop over the loader; or use one file for each worker",
    )
