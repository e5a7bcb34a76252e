"""An explanation: why something went wrong. Mechanisms find explanations, rules put them into words.

A mechanism is a pure function from facts to explanations. Each explanation names the cause
(`culprit`, `place`), the facts that lead to it, in the order in which to present them (`because`),
and its basis (`basis`). Its class says what happened; its other fields are for the text of a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, Basis, Severity

if TYPE_CHECKING:
    from unjam.doctor.facts.case import Case
    from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why something went wrong.

    accounts_for: the symptoms that it explains, as in `Rule.symptom`.
    """

    culprit: str
    place: Place | None
    because: tuple[str, ...]
    basis: Basis = AGREES
    accounts_for: tuple[str, ...] = ()
    case: Case | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All facts: the watched program and the cases of its loaders."""

    watched: ProgramFacts
    cases: tuple[Case, ...]

    def case_of(self, loader: WatchedLoader | None) -> Case | None:
        """Return the case of a loader of the program, if it was examined."""
        return next((one for one in self.cases if loader is not None and one.watched_loader is loader), None)


@dataclass(frozen=True, slots=True)
class Words:
    """The text of a rule for an explanation."""

    title: str
    help: str
    diff: str = ""
    severity: Severity | None = None
