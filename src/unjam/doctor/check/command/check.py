"""`unjam check`: examines a target and returns a Diagnosis."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

from unjam.doctor.check.command.examination import Examination, table
from unjam.doctor.check.command.target_process import CannotExamine, TargetProcess
from unjam.doctor.facts.tune_measurements import Measured, TuneSetting
from unjam.doctor.report.diagnosis import Diagnosis, TrialRow
from unjam.doctor.rules.rule import Finding, by_harm
from unjam.system.masking import without_secrets

BUDGET = 60.0
PROFILE_SECONDS = 4.0


def open_target(target: str, arguments: list[str], *, module: bool = False) -> TargetProcess:
    """Start the process for a target as written on the command line."""
    if module:
        return TargetProcess.from_command(["module", target, *arguments])
    if target.endswith(".ipynb"):
        kind = "notebook"
    elif ":" in target and not os.path.exists(target):
        kind = "object"
    else:
        kind = "script"
    path = target.rpartition(":")[0] if kind == "object" and ".py:" in target else target
    if (kind != "object" or ".py:" in target) and not os.path.isfile(path):
        raise CannotExamine(f"there is no file {path}")
    return TargetProcess.from_command([kind, target, *arguments])


def check(
    process: TargetProcess,
    target: str,
    budget: float = BUDGET,
    say: Callable[[str], None] = lambda _: None,
    tick: Callable[[], None] = lambda: None,
    hurry: float = 1.0,
    *,
    profile: bool = False,
) -> Diagnosis:
    """Examine a program. After a KeyboardInterrupt, the Diagnosis has what is known by then."""
    began = time.monotonic()
    findings: list[Finding] = []
    seen: list[Examination] = []
    measured: list[Measured] = []
    stopped = False
    try:
        say(f"running {target} until its first iter(loader)")
        loaders = process.wait(tick)
        until = time.monotonic() + budget
        for number in range(loaders):
            left = until - time.monotonic()
            if left < 3 or process.gone:
                break
            say("looking at the loader")
            case, tries = process.gather(number)
            examination = Examination(
                process, number, case, tries, left / (loaders - number), say, hurry, last=number == loaders - 1
            )
            seen.append(examination)
            try:
                found = examination.run()
            except KeyboardInterrupt:
                found, stopped = examination.findings(), True
            findings += [f for f in found if not any(_same(f, known) for known in findings)]
            if stopped:
                break
            if profile and not case.drains:
                say("looking where the time goes")
                measured += _profiled(process, number)
    except KeyboardInterrupt:
        stopped = True
    finally:
        process.end()
    rows = [TrialRow(place, *row) for place, one in enumerate(seen) for row in table(one.case)]
    diagnosis = Diagnosis(
        target=target,
        findings=by_harm(findings),
        cases=[one.case for one in seen],
        trials=rows,
        seconds=time.monotonic() - began,
        stopped=stopped,
        untried=[str(plan) for one in seen for plan in one.untried],
        environment=_environment(),
        measured=measured,
    )
    return without_secrets(diagnosis)


def _profiled(process: TargetProcess, number: int) -> list[Measured]:
    """Measure the loader with one unjam worker for a few seconds."""
    if process.gone:
        return []
    measuring = process.measuring(number)
    try:
        return [measuring.measure(TuneSetting("unjam", 1), PROFILE_SECONDS, lambda: None, profile=True)]
    finally:
        measuring.end()


def _same(one: Finding, other: Finding) -> bool:
    return (one.rule, one.culprit, one.location) == (other.rule, other.culprit, other.location)


def _environment() -> dict[str, str]:
    return {"python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()}
