"""What a rule is, and what it finds.

A rule is one file: its docstring is the only text about it, under fixed headings; `detect` looks at a Case, what the doctor's
trials showed, and answers with a Finding or None; `witness`, where a rule has one, does so with a Scene, a running program
seen from outside; `broken` and `fixed` are the smallest real programs that have and do not have the trouble.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from unjam.doctor.facts.trial import Place, Plan
from unjam.system.masking import masked
from unjam.system.printable import printable_line


class Confidence(Enum):
    """How sure a finding is: shown by toggling its cause, shown by evidence, or only suggested by it."""

    PROVEN = "proven"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Severity(Enum):
    """What a finding costs: the run or its results, something less, or nothing today."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Rule:
    """A known cause. `fallback`: names a symptom, and steps back where another rule names the cause."""

    code: str
    name: str
    severity: Severity = Severity.ERROR
    symptom: str = ""
    fallback: bool = False
    yields_to: tuple[str, ...] = ()  # further symptoms that explain this one
    explains: tuple[str, ...] = ()  # further symptoms of the same cause
    live: bool = False  # only a running program shows it: `unjam why` finds it, `unjam check` cannot


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in the order in which it is told."""

    rule: Rule
    title: str
    culprit: str
    evidence: tuple[str, ...]
    confidence: Confidence
    help: str
    location: Place | None = None
    diff: str = ""
    wants: tuple[Plan, ...] = ()  # trials that would make it surer
    severity: Severity | None = None

    @property
    def weight(self) -> Severity:
        """Its own severity, or its rule's."""
        return self.severity or self.rule.severity

    def as_dict(self) -> dict[str, Any]:
        """As the documented JSON has it."""
        return {
            "code": self.rule.code,
            "rule": self.rule.name,
            "title": self.title,
            "culprit": self.culprit,
            "evidence": list(self.evidence),
            "confidence": self.confidence.value,
            "severity": self.weight.value,
            "help": self.help,
            "diff": self.diff,
            "location": {"file": self.location.file, "line": self.location.line} if self.location else None,
        }


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Not yet a finding: the trials that would tell."""

    rule: Rule
    wants: tuple[Plan, ...]


_HARM = {"2": 0, "3": 1, "1": 2, "5": 3, "4": 4, "6": 5, "7": 6}
_SEVERITY = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_CONFIDENCE = {Confidence.PROVEN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


def fit_to_show(finding: Finding) -> Finding:
    """A finding whose words, some of which are the user's, can be shown on any terminal and given to anybody."""
    return replace(
        finding,
        title=_shown(finding.title),
        culprit=_shown(finding.culprit),
        evidence=tuple(_shown(line) for line in finding.evidence),
        help=_shown(finding.help),
        diff="\n".join(_shown(line) for line in finding.diff.splitlines()),
    )


def _shown(text: str) -> str:
    return printable_line(masked(text))


def by_harm(findings: list[Finding]) -> list[Finding]:
    """The worst first."""
    return sorted(
        findings,
        key=lambda f: (_SEVERITY[f.weight], _HARM[f.rule.code[2]], _CONFIDENCE[f.confidence], f.rule.code),
    )


def without_echoes(findings: list[Finding]) -> list[Finding]:
    """Without the fallbacks whose symptom another rule explains, and those that a named cause makes plain."""
    explained = {
        symptom
        for f in findings
        if not f.rule.fallback and f.weight != Severity.NOTE
        for symptom in (f.rule.symptom, *f.rule.explains)
        if symptom
    }
    accused = [f.culprit for f in findings if f.weight is not Severity.NOTE]
    findings = [f for f in findings if f.weight is not Severity.NOTE or f.culprit not in accused]
    return [f for f in findings if not (f.rule.fallback and explained & {f.rule.symptom, *f.rule.yields_to})]
