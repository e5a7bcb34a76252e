"""Measures a training step: runs the program for some batches on its own loader."""

from __future__ import annotations

from collections.abc import Callable

from unjam.doctor.run.launch import CannotRun
from unjam.doctor.run.settings import Settings
from unjam.doctor.run.short_run import short_run


def measure_step(program: list[str], module: str, steps: int, tick: Callable[[], None]) -> tuple[float, int]:
    """Return the median seconds of a step, and the number of batches."""
    seen = short_run(program, module, Settings(observe=True, stop_after=steps + 1), tick)
    known = [(one["step"], one["batches"]) for one in seen["loaders"] if one.get("step")]
    if not known:
        raise CannotRun("the program used too few batches to measure a training step")
    step, batches = max(known, key=lambda pair: pair[1])
    return float(step), int(batches)
