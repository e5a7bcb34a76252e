"""The catalogue of rules: one file for each known cause, in the order of the codes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

from unjam.doctor.facts.case import Case
from unjam.doctor.rules.rule import Finding, Rule


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


NAMED = {kind: file for file in RULES for kind in getattr(file, "NAMES", ())}
