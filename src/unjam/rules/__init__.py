"""The catalogue: every known cause, one file each, in the order of their codes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, cast

from unjam.evidence.case import Case
from unjam.rules.rule import Finding, Rule, Suspicion


class RuleFile(Protocol):
    """What a rule's file offers."""

    RULE: Rule
    __doc__: str
    detect: Callable[[Case], Finding | Suspicion | None]
    broken: Callable[[Any], str | None]
    fixed: Callable[[Any], str | None]


def _files() -> list[RuleFile]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("uj"))
    modules: list[ModuleType] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [cast("RuleFile", module) for module in modules]


RULES = _files()
BY_CODE = {file.RULE.code: file for file in RULES}
