"""Judges a watched program, and combines the result with the findings from the trials of its loaders."""

from __future__ import annotations

from dataclasses import replace

from unjam.doctor.explanation import Explanation, Knowledge, Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.scene import Scene
from unjam.doctor.mechanisms import explanations, waits
from unjam.doctor.proof import Confidence, Severity
from unjam.doctor.queries import scenes
from unjam.doctor.ranking import ranked
from unjam.doctor.rules import IN_PROGRAMS, IN_SCENES, IN_TRIALS, NAMED
from unjam.doctor.rules.rule import Finding, by_harm, fit_to_show, without_echoes


def finding_of(explanation: Explanation) -> Finding:
    """Turn an explanation into a finding of the rule that describes it."""
    file = NAMED[type(explanation)]
    words: Words = file.words(explanation)
    found = Finding(
        file.RULE, words.title, explanation.culprit, explanation.because, explanation.basis, words.help, explanation.place,
        words.diff, severity=words.severity, depth=2, accounts_for=explanation.accounts_for,
    )  # fmt: skip
    return fit_to_show(found.proved(explanation.case))


def findings_of_trials(case: Case) -> list[Finding]:
    """The findings of the rules for a loader, with their proofs from the trials so far."""
    return [said.proved(case) for detect in IN_TRIALS if (said := detect(case)) is not None]


def findings_of_mechanisms(case: Case) -> list[Finding]:
    """The findings of the mechanisms for this loader in the watched program, with their proofs from its trials."""
    if case.program is None:
        return []
    return [finding_of(one) for one in explanations(Knowledge(case.program, (case,))) if one.case is case]


def case_findings(case: Case) -> list[Finding]:
    """The findings from the trials of a loader, without those that the watched program refutes."""
    found = [one for one in findings_of_trials(case) if one.proof is not None and not one.proof.void]
    found = [one for one in found if not is_contradicted(one, case)]
    return [fit_to_show(finding) for finding in by_harm(without_echoes(found))]


def all_findings(watched: ProgramFacts | None, cases: list[Case]) -> list[Finding]:
    """All findings of an examination, the worst first."""
    found: list[Finding] = []
    for case in cases:
        found += [one for one in case_findings(case) if not any(_is_same(one, known) for known in found)]
    if watched is not None:
        found = combine(found, watched, cases)
    return by_harm(without_echoes(found))


def _is_same(one: Finding, other: Finding) -> bool:
    return (one.rule, one.culprit, one.location) == (other.rule, other.culprit, other.location)


def live_findings(scene: Scene) -> list[Finding]:
    """The findings for a running program, from the mechanisms and from every rule that can judge it."""
    found = [finding_of(one) for one in waits.explain_scene(scene)] if scenes.blocked_processes(scene) else []
    found += [one for detect in IN_SCENES if (one := detect(scene)) is not None]
    kept = ranked(found, stopped=any(one.depth > 1 for one in found))
    serious = [one for one in kept if one.weight is not Severity.NOTE]
    return [fit_to_show(one) for one in by_harm(serious or kept)]


def combine(findings: list[Finding], watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """The findings from the trials, the watched program and its frozen processes, each cause once."""
    found = [finding_of(one) for one in explanations(Knowledge(watched, tuple(cases)))]
    found += [fit_to_show(one) for detect in IN_PROGRAMS if (one := detect(watched, cases)) is not None]
    freezes = [
        one
        for one in [*findings, *found]
        if "frozen" in one.symptoms and one.weight is Severity.ERROR and not one.rule.fallback
    ]
    if watched.scene is not None and not freezes:
        found += live_findings(watched.scene)
    kept = list(findings)
    for one in found:
        kept = [other for other in kept if one.rule is not other.rule or one.depth <= other.depth]
        if not any(one.rule is other.rule for other in kept):
            kept.append(one)
    continued = watched.outcome not in ("failed", "frozen") and watched.scene is None
    kept = [
        replace(one, severity=Severity.NOTE)
        if _is_idle_advice(one, watched) or (continued and one.confidence is Confidence.POSSIBLE)
        else one
        for one in kept
    ]
    return _speed_as_notes(ranked(kept, stopped=watched.outcome in ("failed", "frozen")))


WAITS, SECONDS = 0.2, 1.5
STARTS = ("UJ604", "UJ605", "UJ607")


def _is_idle_advice(one: Finding, watched: ProgramFacts) -> bool:
    """Whether a finding is about loading speed in a program that hardly waits for its loaders."""
    epochs = [epoch for loader in watched.loaders for epoch in loader.epochs]
    # the time until the first batch is the start of the workers, which only some of these rules are about
    starts = one.rule.code in STARTS
    waited = sum(epoch.waited + (epoch.first if starts else 0.0) for epoch in epochs)
    total = sum(epoch.seconds - (0.0 if starts else epoch.first) for epoch in epochs)
    return one.rule.code.startswith("UJ6") and one.rule.code < "UJ610" and (waited < SECONDS or waited < WAITS * total)


def _speed_as_notes(findings: list[Finding]) -> list[Finding]:
    """Turn findings about speed into notes if the program has an error."""
    if not any(one.weight is Severity.ERROR for one in findings):
        return findings
    slow = [one for one in findings if one.rule.code.startswith("UJ6")]
    return [replace(one, severity=Severity.NOTE) if one in slow else one for one in findings]


def is_contradicted(finding: Finding, case: Case) -> bool:
    """Whether the watched program shows that the failure of a trial does not happen in it.

    A trial runs later, perhaps without workers, and without the program's servers and threads.
    """
    seen, program = case.watched_loader, case.program
    if case.loader.driver == "unjam" and case.as_is is not None and case.as_is.fine:
        # unjam can send more to its workers, replaces dead workers, and skips bad samples on request
        survived = finding.rule.symptom in ("frozen", "start", "raised", "died") or finding.rule.code == "UJ515"
        if survived or finding.rule.code.startswith(("UJ1", "UJ2")):
            return True
    if seen is None or program is None or finding.weight is Severity.NOTE or finding.rule.code == "UJ511":
        return False
    failed = any(
        one.loader in (seen.number, 0)
        for process in program.processes
        for one in process.failures
        if process.pid == seen.pid
    )
    if finding.rule.symptom == "raised" and any(epoch.batches > 1 for epoch in seen.epochs):
        # the program caught the exception and ran to its end, or it raised a different one
        kinds = {one.type_name for process in program.processes for one in process.failures}
        if program.outcome == "ended" or (finding.kinds and not kinds & set(finding.kinds)):
            return True
    if failed:
        return False
    if finding.rule.code == "UJ306" and seen.workers:
        return True  # the samples were loaded in workers, and none of them failed there
    if finding.rule.symptom == "raised" or finding.rule.code in ("UJ307", "UJ308", "UJ515"):
        return any(epoch.batches > 1 for epoch in seen.epochs)
    if finding.rule.symptom in ("frozen", "died", "start"):
        return bool(seen.complete_epochs) and program.outcome not in ("failed", "frozen")
    return False
