"""Runs `unjam tune`: gets the step time, measures settings, and returns the recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable

from unjam.doctor.check.command.captured_program import CannotExamine
from unjam.doctor.check.command.check import open_target
from unjam.doctor.rules.tuning import Tuned, judge
from unjam.doctor.run.launch import CannotRun
from unjam.doctor.run.settings import Settings
from unjam.doctor.run.short_run import short_run
from unjam.doctor.tune.search import BUDGET, TuneOptions, tune
from unjam.system.masking import without_secrets


class CannotTune(Exception):
    """The loader could not be tuned; the message says why."""


def recommend(
    target: str,
    arguments: list[str],
    say: Callable[[str, float], None],
    *,
    module: bool = False,
    budget: float = BUDGET,
    step_ms: float | None = None,
    steps: int = 0,
    profile: bool = False,
) -> tuple[Tuned, int]:
    """Return the recommendation, and how many loaders the program has."""
    if not 0 < budget < math.inf:
        raise CannotTune(f"--budget: {budget:g} is not a positive number of seconds")
    if steps < 0 or (steps and step_ms is not None):
        raise CannotTune("give either --steps, a positive number of batches, or --step-ms")
    if step_ms is not None and not 0 < step_ms < math.inf:
        raise CannotTune(f"--step-ms: {step_ms:g} is not a positive number")
    step = step_ms / 1000 if step_ms is not None else None
    words = "--step-ms" if step is not None else ""
    try:
        if step is None and steps > 0:
            step, words = _step_from_program(target, arguments, steps, say, module=module)
        process = open_target(target, arguments, module=module)
        measured, loaders = tune(process, target, TuneOptions(budget, step, words, profile), say)
    except (CannotExamine, CannotRun) as error:
        raise CannotTune(str(error)) from error
    return without_secrets(judge(measured)), loaders


def _step_from_program(
    target: str, arguments: list[str], steps: int, say: Callable[[str, float], None], *, module: bool
) -> tuple[float, str]:
    if target.endswith(".ipynb") or (":" in target and not module):
        raise CannotTune("--steps needs a script; for a notebook or an object, give --step-ms")
    say(f"running {target} for {steps} batches", 0.0)
    settings = Settings(observe=True, stop_after=steps + 1)
    seen = short_run(target, arguments, settings, lambda: say("", 0.0), module=module)
    known = [(one["step"], one["batches"]) for one in seen["loaders"] if one.get("step")]
    if not known:
        raise CannotRun("the program used too few batches to measure a training step")
    step, batches = max(known, key=lambda pair: pair[1])
    return float(step), f"the median of {batches} steps of the program itself"
