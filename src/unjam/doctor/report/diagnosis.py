"""The result of `unjam check` or `unjam why`; every report is written from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.tune_measurements import Measurement
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Finding

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial as a row of a table."""

    loader: int
    changed: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor found and what it tried."""

    target: str
    findings: list[Finding]
    cases: list[Case]
    trials: list[TrialRow]
    seconds: float
    stopped: bool = False
    untried: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    measured: list[Measurement] = field(default_factory=list)  # one per loader, with --profile
    scene: Scene | None = None  # the running program, with `unjam why`
    watched: ProgramFacts | None = None  # the program as it ran, where it was watched

    @property
    def serious(self) -> list[Finding]:
        """The findings that are more than notes."""
        return [finding for finding in self.findings if finding.weight is not Severity.NOTE]

    @property
    def exit_code(self) -> int:
        """0: nothing found; 1: something found; 2: stopped before anything could be said."""
        return 1 if self.serious else 2 if self.stopped else 0
