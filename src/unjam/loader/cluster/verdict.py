"""Whether workers on a cluster pay: whether batches are worth their way."""

from __future__ import annotations

from collections.abc import Mapping

from unjam.statistics import NodeShare

# the training must wait for so much of the time, and workers here must be so much faster
WAITS, FASTER = 0.3, 1.2
FEWEST = 20


def does_not_pay(nodes: Mapping[str, NodeShare], coming: float, waited: float, processors: int) -> str:
    """Say why workers on this machine would be faster; empty: they would not, or it is not known yet.

    coming: the seconds in which the batches came. waited: how long the training waited for them.
    """
    there = [one for name, one in nodes.items() if name != "here"]
    batches = sum(one.batches for one in nodes.values())
    if not there or batches < FEWEST or coming <= 0 or waited < WAITS * coming:
        return ""
    making = sum(one.seconds for one in nodes.values()) / batches
    if making <= 0 or processors / making < FASTER * batches / coming:
        return ""
    size = sum(one.bytes for one in there) / max(1, sum(one.batches for one in there))
    return (
        f"a batch ({size / 1e6:.1f} MB) takes {making * 1e3:.1f} ms to make, and one came every {coming / batches * 1e3:.1f} ms: "
        f"the way takes longer than the work, and the {processors} processors of this machine would make one every "
        f"{making / processors * 1e3:.1f} ms"
    )
