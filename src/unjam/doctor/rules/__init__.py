"""The catalogue: every known cause, one file each, in the order of their codes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules.rule import Finding, Rule, Severity, Suspicion, by_harm, fit_to_show, without_echoes


class RuleFile(Protocol):
    """What a rule's file offers."""

    RULE: Rule
    __doc__: str
    detect: Callable[[Case], Finding | Suspicion | None]
    broken: Callable[[Any], str | None]
    fixed: Callable[[Any], str | None]
    # and, where a running program can show it: witness: Callable[[Scene], Finding | None]


def _files() -> list[RuleFile]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("uj"))
    modules: list[ModuleType] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [cast("RuleFile", module) for module in modules]


RULES = _files()
BY_CODE = {file.RULE.code: file for file in RULES}


def witnessed(scene: Scene) -> list[Finding]:
    """What the rules say of a running program, the worst first."""
    found = [file.witness(scene) for file in RULES if hasattr(file, "witness")]
    kept = without_echoes([one for one in found if one is not None])
    serious = [one for one in kept if one.weight is not Severity.NOTE]
    return [fit_to_show(one) for one in by_harm(serious or kept)]
