"""Runs `unjam tune`: gets the step time, measures settings, and returns the recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from unjam.doctor.check.command.captured_program import CannotExamine
from unjam.doctor.check.command.check import open_target
from unjam.doctor.rules.tuning import Tuned, judge
from unjam.doctor.run.launch import CannotRun
from unjam.doctor.run.settings import Settings
from unjam.doctor.run.short_run import short_run
from unjam.doctor.tune.search import TuneOptions, tune
from unjam.system.masking import without_secrets


class CannotTune(Exception):
    """The loader could not be tuned; the message says why."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The arguments of the command line."""

    target: str
    arguments: list[str]
    module: bool = False
    budget: float = 60.0
    step_ms: float | None = None
    steps: int = 0
    profile: bool = False


def tune_result(wanted: TuneRequest, say: Callable[[str, float], None]) -> tuple[Tuned, int]:
    """Return the recommendation, and how many loaders the program has."""
    if not 0 < wanted.budget < math.inf:
        raise CannotTune(f"--budget: {wanted.budget:g} is not a positive number of seconds")
    if wanted.steps < 0 or (wanted.steps and wanted.step_ms is not None):
        raise CannotTune("give either --steps, a positive number of batches, or --step-ms")
    if wanted.step_ms is not None and not 0 < wanted.step_ms < math.inf:
        raise CannotTune(f"--step-ms: {wanted.step_ms:g} is not a positive number")
    step = wanted.step_ms / 1000 if wanted.step_ms is not None else None
    words = "--step-ms" if step is not None else ""
    try:
        if step is None and wanted.steps > 0:
            step, words = _step_from_program(wanted, say)
        process = open_target(wanted.target, wanted.arguments, module=wanted.module)
        options = TuneOptions(wanted.budget, step, words, wanted.profile)
        measured, loaders = tune(process, wanted.target, options, say)
    except (CannotExamine, CannotRun) as error:
        raise CannotTune(str(error)) from error
    return without_secrets(judge(measured)), loaders


def _step_from_program(wanted: TuneRequest, say: Callable[[str, float], None]) -> tuple[float, str]:
    if wanted.target.endswith(".ipynb") or (":" in wanted.target and not wanted.module):
        raise CannotTune("--steps needs a script; for a notebook or an object, give --step-ms")
    say(f"running {wanted.target} for {wanted.steps} batches", 0.0)
    settings = Settings(observe=True, stop_after=wanted.steps + 1)
    seen = short_run(wanted.target, wanted.arguments, settings, lambda: say("", 0.0), module=wanted.module)
    known = [(one["step"], one["batches"]) for one in seen["loaders"] if one.get("step")]
    if not known:
        raise CannotRun("the program used too few batches to measure a training step")
    step, batches = max(known, key=lambda pair: pair[1])
    return float(step), f"the median of {batches} steps of the program itself"
