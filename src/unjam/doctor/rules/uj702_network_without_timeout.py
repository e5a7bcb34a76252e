"""Samples wait for the network, and nothing limits the wait.

What happened: while samples were loaded, the workers waited for sockets again and again, and the
loader's `timeout` is 0: one answer that does not come stops the training without any message.

Why: sockets wait for ever by default, and so does torch.

How to confirm: look at the loader's `timeout` and at the waits that were seen.

How to fix: set a time limit on each request, and `timeout=` in the loader as a last resort; unjam's
`sample_timeout=` ends only the one sample.

Limits: this is a note: nothing failed. Requests may have limits of their own that cannot be seen
from outside.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ702", "network-without-timeout", Severity.NOTE)


def detect(case: Case) -> Finding | None:
    """Find waits for sockets in a loader without a time limit."""
    as_is, loader = case.as_is, case.loader
    if as_is is None or not as_is.fine or loader.timeout:
        return None
    waits = as_is.waits
    seen = waits.get("socket", 0)
    if seen < 3 or seen < 0.2 * sum(waits.values()):
        return None
    return Finding(
        RULE,
        "samples wait for the network, and timeout=0 waits for ever with them",
        f"timeout=0 at {loader.made_at}",
        (f"in {seen} of {sum(waits.values())} looks a worker waited for a socket",),
        SUGGESTED,
        "timeout=120 in the loader, and a time limit on each request",
        loader.made_at,
    )
