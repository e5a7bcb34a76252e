"""What the workers of a loader reported, kept for the next ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unjam.statistics import NodeShare
from unjam.system.logs import log


@dataclass(slots=True)
class WorkerReports:
    """Reports of the workers.

    `imported`: installed modules that workers had to import, in their order. `said`: the kinds of
    warnings that were already logged. `skipped_samples`, `skipped_seconds`: see `skipped`.
    """

    imported: dict[str, None] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    skipped_samples: int = 0
    skipped_seconds: float = 0.0
    # by node of a cluster, what came from there; and for how long batches came from nodes, in seconds
    nodes: dict[str, NodeShare] = field(default_factory=dict)
    coming: float = 0.0

    def came(self, node: str, nbytes: int, seconds: float) -> None:
        """Count a batch of a node."""
        known = self.nodes.get(node, NodeShare())
        self.nodes[node] = replace(
            known, batches=known.batches + 1, bytes=known.bytes + nbytes, seconds=known.seconds + seconds
        )

    def has(self, node: str, workers: int) -> None:
        """Note how many workers a node has."""
        self.nodes[node] = replace(self.nodes.get(node, NodeShare()), workers=workers)

    def skipped(self, samples: int, seconds: float) -> None:
        """Count samples of a stream that were read again only to come to where it was."""
        self.skipped_samples += samples
        self.skipped_seconds += seconds
        count = "1 sample" if samples == 1 else f"{samples:,} samples"
        self.warn_once(
            f"a stream without state_dict() was read again to go on where it was: {count} in {seconds:.1f} s; "
            "with state_dict() and load_state_dict() on the dataset that takes no time"
        )

    def warn_once(self, text: str) -> None:
        """Log a warning, only once for texts that are the same up to the first colon."""
        kind = text.partition(":")[0]
        if kind not in self.said:
            self.said.add(kind)
            log.warning("%s", text)
