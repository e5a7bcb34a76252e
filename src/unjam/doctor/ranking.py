"""Selects the findings to show: each symptom is explained only once, by the best finding.

A finding that names a cause comes before one that names a place, and that before one that only repeats
the symptom; then the better proof counts, then the severity. Symptoms that a shown finding accounts for
are not reported separately; they become lines of its evidence.
"""

from __future__ import annotations

from dataclasses import replace

from unjam.doctor.proof import Confidence, Severity, Toggle
from unjam.doctor.rules.rule import Finding, by_harm, without_echoes

# symptoms that end a program, or the trial of a loader: one cause is enough
STOPS = {"frozen", "raised", "died", "start", "ranks"}
_SURE = {Confidence.PROVEN: 0, Confidence.SEEN: 1, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}
MOST_ALSO = 2


def ranked(findings: list[Finding], *, stopped: bool) -> list[Finding]:
    """The findings to show, the worst first. stopped: the program failed or froze."""
    causes = [
        one for one in findings if one.depth > 1 and one.confidence is not Confidence.POSSIBLE and not one.rule.fallback
    ]
    explained = {symptom for one in causes for symptom in one.accounts_for}
    kept = [one for one in findings if one.depth > 1 or not _is_covered(one, explained)]
    kept = by_harm(without_echoes(kept))
    if stopped:
        kept = _one_cause(kept)
    return kept


def _is_covered(one: Finding, explained: set[str]) -> bool:
    """Whether a mechanism accounts for the symptoms of a finding that is not proven itself."""
    mine = set(one.symptoms)
    stops = bool(mine & STOPS) and bool(explained & STOPS)
    return (bool(mine & explained) or stops) and one.confidence is not Confidence.PROVEN


def _one_cause(findings: list[Finding]) -> list[Finding]:
    """Of the findings that explain why the program stopped, keep the best; the others become its evidence."""
    stops = [one for one in findings if set(one.symptoms) & (STOPS | {"differs"}) and one.weight is Severity.ERROR]
    if len(stops) < 2:
        return findings
    best = min(stops, key=_rank)
    others = [one for one in stops if one is not best]
    also = tuple(f"also seen: {one.title}" for one in others if one.culprit != best.culprit)[:MOST_ALSO]
    whole = replace(best, evidence=(*best.evidence, *also))
    return [whole, *(one for one in findings if one not in stops)]


def _rank(one: Finding) -> tuple[int, int, int]:
    depth = 0 if one.rule.fallback else one.depth
    # a cause proven by a change ranks like one that a mechanism names; leaving samples out does not remove a cause
    if one.confidence is Confidence.PROVEN and isinstance(one.basis, Toggle) and not one.basis.changed[0].without:
        depth = max(depth, 2)
    if one.confidence is Confidence.POSSIBLE:
        depth -= 1
    return (-depth, _SURE[one.confidence], -len(one.evidence))
