"""Samples wait for the network without a timeout.

What happened: while samples were loaded, the workers repeatedly waited for sockets, and the
loader's `timeout` is 0: a single missing answer stops the training without any message.

Why: sockets wait forever by default, and so does torch.

How to confirm: look at the loader's `timeout` and at the waits in the evidence.

How to fix: set a timeout on each request, and `timeout=` in the loader as a last resort; unjam's
`sample_timeout=` ends only that sample.

Limits: this is a note: nothing failed. Requests may have their own timeouts, which cannot be seen
from outside.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ702", "network-without-timeout", Severity.NOTE)


def detect(case: Case) -> Finding | None:
    """Find waits for sockets in a loader without a timeout."""
    as_is, loader = case.as_is, case.loader
    if as_is is None or not as_is.fine or loader.timeout:
        return None
    waits = as_is.waits
    seen = waits.get("socket", 0)
    if seen < 3 or seen < 0.2 * sum(waits.values()):
        return None
    return Finding(
        RULE,
        "samples wait for the network, and with timeout=0 the loader waits forever",
        f"timeout=0 at {loader.made_at}",
        (f"in {seen} of {sum(waits.values())} stack samples a worker waits for a socket",),
        SUGGESTED,
        "set timeout=120 in the loader, and a timeout on each request",
        loader.made_at,
    )
