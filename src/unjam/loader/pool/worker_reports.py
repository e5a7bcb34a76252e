"""What the workers of a loader reported, kept for later ones, and whether workers on a cluster pay off."""

from __future__ import annotations

import array
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unjam.deadlines import STALL_CHECK
from unjam.loader.pool.batch_result import BatchReport
from unjam.statistics import NodeShare
from unjam.system.logs import log
from unjam.units import count, duration

# the training waits at least this share of the time, and local workers would be at least this many times as fast
WAITS, FASTER = 0.3, 1.2
FEWEST = 20


@dataclass(slots=True)
class WorkerReports:
    """Reports of the workers.

    `imported`: installed modules that workers had to import, in their order. `said`: the kinds of
    warnings that were already logged. `reread_samples`, `reread_seconds`: see `reread`.
    """

    imported: dict[str, None] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    reread_samples: int = 0
    reread_seconds: float = 0.0
    # by node of a cluster, what came from there; and for how long batches came from nodes, in seconds
    nodes: dict[str, NodeShare] = field(default_factory=dict)
    arriving_seconds: float = 0.0
    _last_came: float = 0.0

    def count_batch(self, node: str, report: BatchReport) -> None:
        """Count a batch of a node; "here" is this machine."""
        stamps = array.array("q", report.times)
        seconds = (stamps[-1] - stamps[0]) / 1e9 if stamps else 0.0
        nbytes = 0 if node == "here" else report.nbytes
        known = self.nodes.get(node, NodeShare())
        self.nodes[node] = replace(
            known, batches=known.batches + 1, bytes=known.bytes + nbytes, seconds=known.seconds + seconds
        )
        now = time.monotonic()
        self.arriving_seconds += min(now - self._last_came, STALL_CHECK.seconds) if self._last_came else 0.0
        self._last_came = now

    def set_worker_count(self, node: str, workers: int) -> None:
        """Note how many workers a node has."""
        self.nodes[node] = replace(self.nodes.get(node, NodeShare()), workers=workers)

    def reread(self, samples: int, seconds: float) -> None:
        """Count samples of a stream that were read again only to reach its position."""
        self.reread_samples += samples
        self.reread_seconds += seconds
        self.warn_once(
            f"samples of a stream were read again to resume: {count(samples, 'sample')} in {duration(seconds)}; "
            "a dataset with state_dict() and load_state_dict(), and snapshot_every_n_steps=1, avoids that"
        )

    def warn_once(self, text: str) -> None:
        """Log a warning, only once for texts that are the same up to the first colon."""
        kind = text.partition(":")[0]
        if kind not in self.said:
            self.said.add(kind)
            log.warning("%s", text)


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
        f"making a batch ({size / 1e6:.1f} MB) takes {duration(making)}, but one arrived only every "
        f"{duration(coming / batches)}: the network is the bottleneck; the {processors} processors of this machine would "
        f"make one every {duration(making / processors)}"
    )
