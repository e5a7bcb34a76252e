"""The catalogue of rules: one file per known cause, in the order of their codes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, get_args, get_type_hints

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules.rule import Finding, Rule


class RuleFile(Protocol):
    """What the file of a rule defines, besides at least one way to find its cause.

    words: puts explanations of mechanisms into words; the type of its argument says which ones. detect, detect_program and
    detect_live: what it finds itself in the trials of a loader, in a run of the program, and in a running program observed
    from outside.
    """

    RULE: Rule
    __doc__: str


def example(code: str, kind: str) -> Path:
    """Return the smallest real program with ("broken") or without ("fixed") the cause; exists only in a source tree."""
    return Path(__file__).parent / "programs" / f"{code.lower()}_{kind}.py"


def _files() -> list[RuleFile]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("uj"))
    modules: list[ModuleType] = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [cast("RuleFile", module) for module in modules]


def _kinds(file: Any) -> tuple[type, ...]:
    """Return the explanations that a rule puts into words: the type of the argument of `words`."""
    kind = get_type_hints(file.words)["one"] if hasattr(file, "words") else None
    return get_args(kind) or ((kind,) if kind is not None else ())


def _defined(name: str) -> list[Any]:
    return [found for file in RULES if (found := getattr(file, name, None)) is not None]


RULES = _files()
BY_CODE = {file.RULE.code: file for file in RULES}
NAMED: dict[type, Any] = {kind: file for file in RULES for kind in _kinds(file)}
IN_TRIALS: list[Callable[[Case], Finding | None]] = _defined("detect")
IN_PROGRAMS: list[Callable[[ProgramFacts, list[Case]], Finding | None]] = _defined("detect_program")
IN_SCENES: list[Callable[[Scene], Finding | None]] = _defined("detect_live")
