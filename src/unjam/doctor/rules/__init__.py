"""The catalogue of rules: one file for each known cause, in the order of the codes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

from unjam.doctor.explanation import Explanation, Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.proof import Severity
from unjam.doctor.rules.rule import Finding, Rule, by_harm, fit_to_show, without_echoes


class RuleFile(Protocol):
    """What the file of a rule defines."""

    RULE: Rule
    __doc__: str
    detect: Callable[[Case], Finding | None]
    broken: Callable[[Any], str | None]
    fixed: Callable[[Any], str | None]
    # optional: NAMES, the classes of explanations that it names, and words(explanation) -> Words
    # optional, for causes that a running program shows: detect_live(scene) -> Finding | None
    # optional, for what a watched program does: detect_program(watched, cases) -> list[Finding]


def _files() -> list[RuleFile]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("uj"))
    modules: list[ModuleType] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [cast("RuleFile", module) for module in modules]


RULES = _files()
BY_CODE = {file.RULE.code: file for file in RULES}


def named(explanation: Explanation) -> Finding:
    """Give an explanation the words of the rule that names it."""
    file = _NAMED[type(explanation)]
    words: Words = file.words(explanation)  # type: ignore[attr-defined] # a rule that names explanations has it
    found = Finding(
        file.RULE, words.title, explanation.culprit, explanation.because, explanation.basis, words.help, explanation.place,
        words.diff, severity=words.severity, depth=2, accounts_for=explanation.accounts_for,
    )  # fmt: skip
    return fit_to_show(found.proved(explanation.case))


_NAMED = {kind: file for file in RULES for kind in getattr(file, "NAMES", ())}


def detected_live(scene: Scene) -> list[Finding]:
    """Run every rule that can judge a running program; the worst finding comes first."""
    found = [detect(scene) for file in RULES if (detect := getattr(file, "detect_live", None)) is not None]
    kept = without_echoes([one for one in found if one is not None])
    serious = [one for one in kept if one.weight is not Severity.NOTE]
    return [fit_to_show(one) for one in by_harm(serious or kept)]
