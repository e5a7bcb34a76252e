"""What the workers of a loader told of themselves, for the next ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from unjam.system.logs import log


@dataclass(slots=True)
class Learnt:
    """`imported`: installed modules that workers had to import, in their order. `mentioned`: what was said once already."""

    imported: dict[str, None] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)

    def mention(self, text: str) -> None:
        """Say something once; what comes after a colon may differ from time to time."""
        kind = text.partition(":")[0]
        if kind not in self.mentioned:
            self.mentioned.add(kind)
            log.warning("%s", text)
