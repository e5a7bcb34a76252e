"""Rules and their findings.

Each rule is one file. Its docstring, under fixed headings, is its only documentation. A rule either words explanations of
mechanisms (`words`), or finds its cause itself: `detect` in the trials of a loader (a Case), `detect_program` in a
run of the program (a ProgramFacts, and the Cases of its loaders), `detect_live` in a running program observed from outside
(a Scene). The smallest real programs with and without the cause are in `programs/`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Place, Plan
from unjam.doctor.proof import Basis, Confidence, Proof, Severity, prove
from unjam.system.masking import masked
from unjam.system.printable import printable_line


@dataclass(frozen=True, slots=True)
class Rule:
    """A known cause. A `fallback` names only a symptom and is dropped if another rule names the cause."""

    code: str
    name: str
    severity: Severity = Severity.ERROR
    symptom: str = ""
    fallback: bool = False
    yields_to: tuple[str, ...] = ()  # further symptoms whose cause also explains this one
    explains: tuple[str, ...] = ()  # further symptoms that this cause produces
    replaces: tuple[str, ...] = ()  # codes of rules that name the same cause less precisely


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. The fields are in the order in which the report shows them."""

    rule: Rule
    title: str
    culprit: str
    evidence: tuple[str, ...]
    basis: Basis
    help: str
    location: Place | None = None
    diff: str = ""
    wants: tuple[Plan, ...] = ()  # further trials that would give more evidence
    severity: Severity | None = None
    proof: Proof | None = None
    depth: int = 1  # 2: names a cause that a mechanism found; 1: names a place
    accounts_for: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()  # the types of the exceptions that it explains

    def __post_init__(self) -> None:
        """Leave out the lines of evidence that are empty: those that do not apply."""
        object.__setattr__(self, "evidence", tuple(filter(None, self.evidence)))

    @property
    def confidence(self) -> Confidence:
        """How certain the finding is."""
        return (self.proof or prove(self.basis, None)).confidence

    def proved(self, case: Case | None) -> Finding:
        """Return the finding with the evidence from the trials of a loader."""
        known = prove(self.basis, case)
        return replace(self, proof=known, evidence=(*self.evidence, *known.words), wants=(*self.wants, *known.wants))

    @property
    def symptoms(self) -> tuple[str, ...]:
        """The symptoms that the finding accounts for."""
        return self.accounts_for or tuple(one for one in (self.rule.symptom, *self.rule.explains) if one)

    @property
    def weight(self) -> Severity:
        """The finding's own severity, or that of its rule."""
        return self.severity or self.rule.severity

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as in the documented JSON."""
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


def case_of(cases: list[Case], loader: WatchedLoader) -> Case | None:
    """Return the case of a loader of the program, if it was examined."""
    return next((one for one in cases if one.watched_loader is loader), None)


def dataset_place(cases: list[Case], loader: WatchedLoader) -> Place | None:
    """Return the line of the loader's dataset, if the loader was examined."""
    case = case_of(cases, loader)
    return case.loader.dataset_place if case is not None else None


def line_evidence(words: str, place: Place | None) -> tuple[str, ...]:
    """Return the words with a line and its text, as evidence; nothing if the line is unknown."""
    return (f"{words} {quoted(place)}",) if place is not None else ()


_HARM = {"2": 0, "3": 1, "1": 2, "5": 3, "4": 4, "6": 5, "7": 6}
_SEVERITY = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
_CONFIDENCE = {Confidence.PROVEN: 0, Confidence.SEEN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


def fit_to_show(finding: Finding) -> Finding:
    """Return the finding with secrets masked and unprintable characters escaped.

    Its texts contain strings from the user's program.
    """
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
    """Sort the findings, the most harmful first."""
    return sorted(
        findings,
        key=lambda f: (_SEVERITY[f.weight], _HARM[f.rule.code[2]], _CONFIDENCE[f.confidence], f.rule.code),
    )


def without_echoes(findings: list[Finding]) -> list[Finding]:
    """Drop fallbacks that another finding explains, and notes on a culprit that another finding names."""
    explained = {
        symptom
        for f in findings
        if not f.rule.fallback and f.weight != Severity.NOTE
        for symptom in (f.rule.symptom, *f.rule.explains)
        if symptom
    }
    replaced = {code for f in findings for code in f.rule.replaces if f.weight is not Severity.NOTE}
    findings = [f for f in findings if f.rule.code not in replaced]
    culprits = [f.culprit for f in findings if f.weight is not Severity.NOTE]
    findings = [f for f in findings if f.weight is not Severity.NOTE or f.culprit not in culprits]
    return [f for f in findings if not (f.rule.fallback and explained & {f.rule.symptom, *f.rule.yields_to})]
