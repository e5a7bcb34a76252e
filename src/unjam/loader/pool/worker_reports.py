"""What the workers of a loader reported, kept for the next ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from unjam.system.logs import log


@dataclass(slots=True)
class WorkerReports:
    """Reports of the workers.

    `imported`: installed modules that workers had to import, in their order. `said`: the kinds of
    warnings that were already logged.
    """

    imported: dict[str, None] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def warn_once(self, text: str) -> None:
        """Log a warning, only once for texts that are the same up to the first colon."""
        kind = text.partition(":")[0]
        if kind not in self.said:
            self.said.add(kind)
            log.warning("%s", text)
