"""Counts what is copied to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from unjam.statistics import Copies


@dataclass(slots=True)
class CopyCount:
    """The fields of `Copies`, over all epochs of a loader; `direct` in bytes."""

    batches: int = 0
    nbytes: int = 0
    direct: int = 0
    ready: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    # called for every copy: when it began and ended, bytes, and how long the consumer's stream waited; all in nanoseconds
    on_copied: Callable[[int, int, int, int], None] | None = field(default=None, compare=False)

    def copied(self, begun: int, done: int, nbytes: int, waited: int) -> None:
        """Record a completed copy."""
        self.seconds += (done - begun) / 1e9
        self.waited += waited / 1e9
        if self.on_copied is not None:
            self.on_copied(begun, done, nbytes, waited)

    @classmethod
    def together(cls, counts: list[CopyCount]) -> CopyCount:
        """The sum of several."""
        return cls(
            *(sum(getattr(one, field.name) for one in counts) for field in dataclasses.fields(cls) if field.compare)
        )

    def statistics(self) -> Copies | None:
        """Return what was copied so far."""
        if not self.batches:
            return None
        share = self.direct / self.nbytes if self.nbytes else 0.0
        return Copies(self.batches, self.nbytes, self.seconds, self.waited, self.ready, share)
