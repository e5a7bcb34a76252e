"""A bus error: a process accessed mapped memory that no longer exists.

What happened: a process accessed memory that is mapped from a file (or from /dev/shm) beyond the
end of the file, and was ended by SIGBUS.

Why: the file became shorter after it was mapped (rewritten, truncated, a network file system), or
/dev/shm was full when a mapped page of it was first used.

How to confirm: loading only the named sample ends the process at the same line; `df -h /dev/shm`
shows whether space is left.

How to fix: write a new file under another name and rename it, instead of truncating a mapped file;
for a small /dev/shm see UJ401.

Limits: which mapping it was is inferred from the line.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.mechanisms.ended_peers import MappedFileShrunk
from unjam.doctor.queries.trials import basis_without_samples, dead_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import size

RULE = Rule("UJ304", "bus-error", symptom="died")


def words(one: MappedFileShrunk) -> Words:
    """Say which file became shorter."""
    harm = "; a process that accessed the missing part was ended by SIGBUS" if one.died else ""
    what = (
        f"was truncated to {size(one.size)} while {size(one.mapped)} of it were mapped"
        if one.mapped
        else "was truncated while it was mapped"
    )
    return Words(
        f"{one.path} {what}{harm}",
        "write to another file and rename it over this one, or give each dataset its own file",
    )


def detect(case: Case) -> Finding | None:
    """Find a process that was ended by SIGBUS."""
    crashed = [(trial, end) for trial, end in dead_processes(case) if end.signal == "SIGBUS"]
    if not crashed:
        return None
    _, end = crashed[0]
    alone = any(trial.plan.workers == 0 for trial, _ in crashed)
    where = f"sample {end.index}" if end.index else "a worker"
    mapped = [part.path for part in case.kinds("array") if part.state.mapped]
    return Finding(
        RULE,
        f"{where} accesses mapped memory that no longer exists (SIGBUS)",
        f"{where} at {end.place}" if end.place else where,
        (
            *line_evidence("innermost line of the program:", end.place),
            f"mapped from files: {', '.join(mapped[:3])}" if mapped else "",
            f"/dev/shm had {size(free)} free" if (free := case.process_facts.shm_free) is not None else "",
            "the same without workers: the file is the cause, not /dev/shm" if alone else "",
        ),
        basis_without_samples(case, (one.index for _, one in crashed)),
        f"check whether the file behind {end.place or 'the mapping'} became shorter after it was mapped",
        end.place,
    )
