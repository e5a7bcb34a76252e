"""Tries edits on the program in its own view of the files, and keeps those that are proven."""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from unjam.doctor.fix.proposals import Proposal, proposals
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.rules.rule import Finding

MOST_TRIED = 3  # edits for each finding


@dataclass(slots=True)
class Mended:
    """One finding, the edit that removes it, or why there is none."""

    code: str
    title: str
    words: str = ""
    path: str = ""
    proven: bool = False
    refused: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Repair:
    """All findings, and the new texts of the files that proven edits change."""

    mended: list[Mended] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def diff(self) -> str:
        """All changes as one patch."""
        found: list[str] = []
        for path, text in self.files.items():
            with open(path, encoding="utf-8", newline="") as file:
                old = file.read()
            shown = os.path.relpath(path)
            found += difflib.unified_diff(
                old.splitlines(keepends=True), text.splitlines(keepends=True), f"a/{shown}", f"b/{shown}"
            )
        return "".join(found)

    def write(self) -> None:
        """Write the changed files, each in one step."""
        for path, text in self.files.items():
            folder, name = os.path.split(os.path.realpath(path))
            handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
            try:
                with open(handle, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
                os.chmod(temporary, os.stat(path).st_mode & 0o7777)
                os.replace(temporary, os.path.join(folder, name))
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise


def repair(first: Diagnosis, check: Callable[[dict[str, str]], Diagnosis], say: Callable[[str], None]) -> Repair:
    """Find an edit for each serious finding; `check` examines the program with other texts of its files."""
    result = Repair()
    now = first
    for finding in first.serious:
        if not any(finding.rule is one.rule for one in now.serious):
            continue  # an earlier edit removed it, too
        done = Mended(finding.rule.code, finding.title)
        result.mended.append(done)
        for number, proposal in enumerate(proposals(finding, now.cases, result.files)):
            if isinstance(proposal, str):
                done.refused.append(proposal)
                continue
            if number >= MOST_TRIED:
                break
            say(f"trying an edit: {proposal.words}")
            after = check({**result.files, proposal.path: proposal.text})
            worse = _worse(finding, now, after)
            if worse:
                done.refused.append(f"{proposal.words}: {worse}")
                continue
            _keep(result, done, proposal)
            now = after
            break
    return result


def _keep(result: Repair, done: Mended, proposal: Proposal) -> None:
    result.files[proposal.path] = proposal.text
    done.words, done.path, done.proven = proposal.words, proposal.path, True


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
        return f"the changed program {after.watched.outcome}"
    return ""
