"""An environment variable that should limit threads has no effect.

What happened: the program sets a variable that should limit threads. No loaded library reads a
variable of that name; or the library read it before it was set.

Why: wrong names are copied from article to article. OpenCV reads OPENCV_FOR_THREADS_NUM (and has
`cv2.setNumThreads`); OPENCV_OPENMP_NUM_THREADS has no effect. OMP_NUM_THREADS and similar variables
are read when the library is loaded: setting them after `import numpy` is too late.

How to confirm: the name does not occur in any library or module of the process; the pool does not
have the requested size.

How to fix: use the call that sets the limit (`cv2.setNumThreads(0)`,
`threadpoolctl.threadpool_limits(1)`, `torch.set_num_threads(1)`), or set the right variable before
the first import.

Limits: only variables with THREADS in their name are checked. A library that is loaded later may
still read the variable.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ704", "variable-without-effect", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Find variables that no library reads, or that were set too late."""
    idle, late = case.process_facts.idle_variables, case.process_facts.late_variables
    if not idle and not late:
        return None
    name = next(iter(idle or late))
    pools = ", ".join(f"{pool['library']}: {pool['threads']}" for pool in case.process_facts.pools)
    if idle:
        title = f"{name}={idle[name]} has no effect: nothing in this process reads a variable of that name"
        evidence: tuple[str, ...] = ("the name does not occur in any loaded library or module",)
        help_text = (
            "call cv2.setNumThreads(0) in worker_init_fn, or set OPENCV_FOR_THREADS_NUM=1 before Python starts"
            if name.startswith("OPENCV")
            else "remove it, or call threadpoolctl.threadpool_limits(1)"
        )
    else:
        title = f"{name}={late[name]} has no effect: it was set after the library had read it"
        evidence = (f"the program sets {name} itself, after the import",)
        help_text = (
            f"set {name} before the first import (or before Python starts), or call threadpoolctl.threadpool_limits(1)"
        )
    return Finding(
        RULE,
        title,
        name,
        (*evidence, f"threads now: {pools}" if pools else ""),
        OBSERVED if idle else AGREES,
        help_text,
        case.loader.made_at,
    )
