"""A worker crashes in native code.

What happened: a worker was ended by a signal that the processor or the C library raises: a
segmentation fault, an abort, an illegal instruction. torch reports `DataLoader worker is killed by
signal` and does not name the sample.

Why: a bug in a native library, a damaged file that the library does not check, an object that must
not be used after fork (UJ203), or memory passed with the wrong size (ctypes).

How to confirm: loading only the named sample, with `num_workers=0`, crashes the process at the same
line.

How to fix: check the named sample's file and the library's version. Until then skip the sample:
unjam's loader replaces the worker and, with `on_error="skip"`, continues without the sample.

Limits: the innermost Python line is known, the native function is not.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.queries.trials import basis_without_samples, dead_processes
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ302", "native-crash", symptom="died")
SIGNALS = {
    "SIGSEGV": "a segmentation fault",
    "SIGABRT": "an abort",
    "SIGFPE": "a division by zero",
    "SIGILL": "an illegal instruction",
}


def detect(case: Case) -> Finding | None:
    """Find a process that was ended by a crash signal."""
    crashed = [(trial, end) for trial, end in dead_processes(case) if end.signal in SIGNALS]
    if not crashed:
        return None
    _, end = crashed[0]
    alone = any(trial.plan.workers == 0 for trial, _ in crashed)
    innermost = end.frames[0] if end.frames else None
    where = f"sample {end.index}" if end.index else "a worker"
    return Finding(
        RULE,
        f"{where} crashes its process: {SIGNALS[end.signal]} ({end.signal})",
        f"{where} at {end.place}" if end.place else where,
        (
            *line_evidence("innermost line of the program:", end.place),
            f"innermost Python call: {innermost.function} in {innermost.file}" if innermost else "",
            "the same without workers: the sample is the cause, not the workers" if alone else "",
            "without workers the same samples load: the crash happens only after fork"
            if not alone and case.alone and case.alone.fine
            else "",
        ),
        basis_without_samples(case, (one.index for _, one in crashed)),
        f"check what {where} reads at {end.place}, and the version of the library that it calls there",
        end.place,
    )
