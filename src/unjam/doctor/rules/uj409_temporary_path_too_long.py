"""The path of the temporary folder is too long for a socket.

What happened: torch sends descriptors between processes through sockets in the temporary folder
(`TMPDIR`). A socket's path is limited to about a hundred characters, and this folder's path leaves
no space for the socket's name. The batches are lost in a background thread, and the loader waits.

Why: cluster schedulers often set `TMPDIR` to long paths.

How to confirm: with a shorter `TMPDIR` the loader succeeds.

How to fix: run `export TMPDIR=/tmp` before the program starts, or set `tempfile.tempdir = "/tmp"`
at its beginning. unjam's own loader needs no such socket.

Limits: none known.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ409", "temporary-path-too-long", symptom="frozen")
# AF_UNIX allows 107; multiprocessing adds "/pymp-xxxxxxxx/listener-xxxxxxxx"
LONGEST = 107 - 32


def detect(case: Case) -> Finding | None:
    """Find a long path, and a loader that fails only with workers."""
    path, as_is = case.process_facts.temporary, case.as_is
    if case.loader.sharing != "file_descriptor":
        return None
    if len(path) <= LONGEST or as_is is None or as_is.fine or case.alone is None or not case.alone.fine:
        return None
    reported = "AF_UNIX path too long" in as_is.output + (as_is.raised.trace if as_is.raised else "")
    return Finding(
        RULE,
        f"the temporary folder's path has {len(path)} characters, too many for the sockets that torch creates in it",
        f"TMPDIR={path}",
        (
            f"limit: {LONGEST} characters; used: {len(path)}",
            "the workers report: AF_UNIX path too long" if reported else "",
            f"with workers: {as_is.outcome}; without workers: no failure",
        ),
        AGREES if reported else SUGGESTED,
        "export TMPDIR=/tmp before the program starts",
    )
