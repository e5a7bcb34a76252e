"""Tries edits on the program in its own view of the files, and keeps those that are proven."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from unjam.doctor.check.command.captured_program import CannotExamine
from unjam.doctor.facts.trial import Trial
from unjam.doctor.fix.proposals import proposals
from unjam.doctor.fix.write_back import Edited, write_back
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.rules.rule import Finding

MOST_TRIED = 3  # edits for each finding


@dataclass(slots=True)
class FindingRepair:
    """One finding, the edit that removes it, or why there is none."""

    code: str
    words: str = ""  # what the proven edit does
    refused: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Repair:
    """All findings, and the new texts of the files that proven edits change."""

    repairs: list[FindingRepair] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)

    def diff(self) -> str:
        """All changes as one patch."""
        found: list[str] = []
        for path, text in self.files.items():
            old = self.originals[path]
            shown = os.path.relpath(path)
            found += difflib.unified_diff(
                old.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{shown}", f"b/{shown}"
            )
        return "".join(found)

    def write(self) -> list[str]:
        """Write the changed files; return the backups that were made."""
        return write_back(
            [
                Edited(path, self.originals[path].encode("utf-8"), text.encode("utf-8"))
                for path, text in self.files.items()
            ]
        )


def repair(first: Diagnosis, check: Callable[[dict[str, str]], Diagnosis], say: Callable[[str], None]) -> Repair:
    """Find an edit for each serious finding; `check` examines the program with other texts of its files."""
    result = Repair()
    now = first
    for finding in first.serious:
        if not any(finding.rule is one.rule for one in now.serious):
            continue  # an earlier edit removed it, too
        done = FindingRepair(finding.rule.code)
        result.repairs.append(done)
        for number, proposal in enumerate(proposals(finding, now.cases, result.files)):
            if isinstance(proposal, str):
                done.refused.append(proposal)
                continue
            if number >= MOST_TRIED:
                break
            say(f"trying an edit: {proposal.words}")
            try:
                after = check({**result.files, proposal.path: proposal.text})
                worse = _worse(finding, now, after)
            except CannotExamine as error:
                worse = str(error).splitlines()[0]
            if worse:
                done.refused.append(f"{proposal.words}: {worse}")
                continue
            result.originals.setdefault(proposal.path, proposal.original)
            result.files[proposal.path] = proposal.text
            done.words, now = proposal.words, after
            break
    return result


def _worse(finding: Finding, before: Diagnosis, after: Diagnosis) -> str:
    """Why an edit is no repair; "" if the finding is gone and nothing else came."""
    if any(one.rule is finding.rule for one in after.serious):
        return f"{finding.rule.code} is still there"
    known = {one.rule.code for one in before.serious}
    new = [one for one in after.serious if one.rule.code not in known]
    if new:
        return f"the changed program has {new[0].rule.code}: {new[0].title}"
    if after.watched is None or not after.cases:
        return "the changed program could not be watched"
    if (
        after.watched.outcome in ("failed", "frozen")
        and before.watched is not None
        and before.watched.outcome != after.watched.outcome
    ):
        return f"the changed program {'froze' if after.watched.outcome == 'frozen' else 'failed'}"
    return _other_samples(before, after)


def _other_samples(before: Diagnosis, after: Diagnosis) -> str:
    """Whether workers of the changed program load other samples than the program without workers does."""
    for old, new in zip(before.cases, after.cases, strict=False):
        if old.first_alone is None or new.as_is is None:
            continue
        usual = _contents(old.first_alone)
        now = _contents(new.as_is)
        wrong = sum(now[index] != content for index, content in usual.items() if index in now)
        if wrong:
            return f"{wrong} of {len(usual)} samples that the changed program loads differ from those loaded without workers"
    return ""


def _contents(trial: Trial) -> dict[str, str]:
    """The content of each sample that does not depend on random numbers, by index."""
    return {
        one.index: one.digest
        for one in trial.of_epoch(0)
        if not one.drew and not one.unseeded and one.digest and "#" not in one.index
    }
