"""`unjam check`: examines a target and returns a Diagnosis."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unjam.doctor.check.command.captured_program import CannotExamine, CapturedProgram
from unjam.doctor.check.command.examination import Examination, trial_rows
from unjam.doctor.check.command.target_process import TargetProcess
from unjam.doctor.check.command.watched_program import WatchedProgram, program_command
from unjam.doctor.check.target.capture_agent import MOST_LOADERS
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.notebook_cells import remember
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedProcess
from unjam.doctor.facts.tune_measurements import Measurement, TuneSetting
from unjam.doctor.judge import all_findings
from unjam.doctor.report.diagnosis import Diagnosis, TrialRow
from unjam.system import exits
from unjam.system.isolation.program_files import REAL, full_text
from unjam.system.masking import without_secrets
from unjam.units import duration

BUDGET = 60.0
# seconds of loading that are watched: usually, and with --all
WATCH, WHOLE = 30.0, 24 * 3600.0
SECOND_RUN = 60.0  # the most seconds for a second run up to the first loader
PROFILE_SECONDS = 4.0


def open_target(target: str, arguments: list[str], *, module: bool = False) -> TargetProcess:
    """Start the process for a target of the command line."""
    if module:
        return TargetProcess(["module", target, *arguments])
    if target.endswith(".ipynb"):
        kind = "notebook"
    elif ":" in target and not os.path.exists(target):
        kind = "object"
    else:
        kind = "script"
    path = target.rpartition(":")[0] if kind == "object" and ".py:" in target else target
    if (kind != "object" or ".py:" in target) and not os.path.isfile(path):
        raise CannotExamine(f"there is no file {path}")
    return TargetProcess([kind, target, *arguments])


@dataclass
class CheckOptions:
    """What the user asked for, and the callbacks that report progress."""

    budget: float = BUDGET
    say: Callable[[str], None] = lambda _: None
    timeout_factor: float = 1.0  # for the times after which a program or trial counts as frozen
    profile: bool = False
    watch: bool | None = None  # False: only trials; True: watch even if the user's files cannot be protected
    watch_to_end: bool = False
    edits: dict[str, str] = field(default_factory=dict)  # path -> edited text of one of the program's files


@dataclass
class _Results:
    """The results so far."""

    began: float = field(default_factory=time.monotonic)
    examinations: list[Examination] = field(default_factory=list)
    measured: list[Measurement] = field(default_factory=list)
    watched: ProgramFacts | None = None
    files: str = ""  # what the protection of the user's files did not cover
    stopped: bool = False  # by Ctrl-C

    @property
    def cases(self) -> list[Case]:
        """The facts of the examined loaders."""
        return [one.case for one in self.examinations]

    def diagnosis(self, target: str) -> Diagnosis:
        rows = [TrialRow(place, *row) for place, one in enumerate(self.examinations) for row in trial_rows(one.case)]
        environment = {
            "python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()
        }  # fmt: skip
        if self.files:
            environment["files"] = self.files
        diagnosis = Diagnosis(
            target=target,
            findings=all_findings(self.watched, self.cases),
            cases=self.cases,
            trials=rows,
            seconds=time.monotonic() - self.began,
            stopped=self.stopped,
            untried=[str(plan) for one in self.examinations for plan in one.untried],
            environment=environment,
            measured=self.measured,
            watched=self.watched,
        )
        return without_secrets(diagnosis)


def check_program(target: str, arguments: list[str], options: CheckOptions, *, module: bool = False) -> Diagnosis:
    """Examine a program of the command line: watch it, then run trials of its loaders."""
    if target.endswith(".ipynb"):
        with contextlib.suppress(OSError, ValueError):  # running the program reports what is wrong with it
            remember(target)
    is_object = ":" in target and not os.path.exists(target)
    if options.watch is False or (is_object and not module):
        return check(open_target(target, arguments, module=module), target, options)
    command = program_command(target, arguments, module=module)
    stdin = sys.stdin.buffer.read() if target == "-" else None
    program = WatchedProgram(command, may_be_real=bool(options.watch), stdin=stdin, edits=options.edits)
    again = functools.partial(_first_loaders, command, stdin, options) if program.files.isolation != REAL else None
    return _watch(program, target, options, again)


def _first_loaders(command: list[str], stdin: bytes | None, options: CheckOptions) -> list[WatchedProcess]:
    """Run the program a second time until it uses its first loader, as a run that resumes from a checkpoint would."""
    options.say("running it again until its first iter(loader): would a resumed run get the same data?")
    program = WatchedProgram(command, stdin=stdin, edits=options.edits, stop_early=True)
    try:
        return program.first_loaders(SECOND_RUN)
    finally:
        program.end()


def _watch(
    program: WatchedProgram, target: str, options: CheckOptions, again: Callable[[], list[WatchedProcess]] | None
) -> Diagnosis:
    """Watch a program and run trials of its loaders."""
    results = _Results()
    try:
        seconds = WHOLE if options.watch_to_end else min(WATCH, options.budget / 2)
        options.say(f"watching {target}" + ("" if options.watch_to_end else f" (up to {duration(seconds)} of loading)"))
        watched = program.watch(seconds, options.timeout_factor)
        results.watched = watched
        results.stopped = program.interrupted
        if watched.outcome != "ended" and not results.stopped and (room := program.files.full()):
            what = {"failed": "and failed, perhaps for this reason", "frozen": "and froze, perhaps for this reason"}
            advice = "reduce what it writes, or run the check where more memory is free"
            raise CannotExamine(
                f"the program {full_text(room)}, {what.get(watched.outcome, 'and could not continue as usual')}; {advice}"
            )
        if watched.outcome == "failed" and (refused := program.refused_changes()):
            raise CannotExamine(
                "the program failed, perhaps because the kernel refused writes of its native code: "
                f"{', '.join(refused[:4])}; examine it where its files can be isolated, or pass --watch"
            )
        if not results.stopped:
            _examine(program, range(min(len(program.captured), MOST_LOADERS)), options, results)
            program.let_end(watched)
    except KeyboardInterrupt:
        results.stopped = True
    finally:
        results.files = program.protection()
        program.end()
    if results.watched is not None and again is not None and results.watched.saves_training and not results.stopped:
        try:
            results.watched.second_run = again()
        except KeyboardInterrupt:
            results.stopped = True
    diagnosis = results.diagnosis(target)
    if results.watched is not None and not (results.watched.loaders or diagnosis.findings or results.stopped):
        raise CannotExamine(_before_loading(results.watched) + (f"\n{results.files}" if results.files else ""))
    return diagnosis


def _before_loading(watched: ProgramFacts) -> str:
    if watched.outcome == "frozen":
        return f"the program froze before it iterated a DataLoader\n{watched.output}"
    failed = f"failed ({exits.short(watched.code)})" if watched.code else "failed"
    what = failed if watched.outcome == "failed" else "ended" if watched.outcome == "ended" else "ran out of time"
    return f"the program {what} before it iterated a DataLoader\n{watched.output}"


def check(process: TargetProcess, target: str, options: CheckOptions | None = None) -> Diagnosis:
    """Examine a program that stops at its first iter().

    After a KeyboardInterrupt, the Diagnosis contains what is known so far.
    """
    options = options or CheckOptions()
    results = _Results()
    try:
        options.say(f"running {target} until its first iter(loader)")
        loaders = process.wait_for_loader()
        _examine(process, range(loaders), options, results)
    except KeyboardInterrupt:
        results.stopped = True
    finally:
        results.files = process.protection()
        process.end()
    return results.diagnosis(target)


def _examine(process: CapturedProgram, numbers: range, options: CheckOptions, results: _Results) -> None:
    until = time.monotonic() + options.budget
    for number in numbers:
        left = until - time.monotonic()
        if left < 3 or process.gone:
            break
        which = f"loader {number + 1} of {len(numbers)}" if len(numbers) > 1 else "the loader"
        options.say(f"examining {which}")
        try:
            case, handlers = process.gather(number)
        except CannotExamine:
            if results.watched is None:
                raise
            continue
        if results.watched is not None and isinstance(process, WatchedProgram):
            known = process.captured[number]
            case.program = results.watched
            case.watched_loader = next(
                (one for one in results.watched.loaders if (one.pid, one.number) == (known.parent, known.loader)), None
            )
        share, last = left / (len(numbers) - number), number == numbers[-1]
        examination = Examination(
            process, number, case, handlers, share, options.say, options.timeout_factor, last=last
        )
        results.examinations.append(examination)
        try:
            examination.run()
        except KeyboardInterrupt:
            results.stopped = True
            break
        if options.profile and not case.drains:
            options.say(f"profiling {which}")
            results.measured += _profiled(process, number)


def _profiled(process: CapturedProgram, number: int) -> list[Measurement]:
    """Measure the loader with one unjam worker for a few seconds."""
    if process.gone:
        return []
    measuring = process.measuring(number)
    try:
        return [measuring.measure(TuneSetting("unjam", 1), PROFILE_SECONDS, lambda: None, profile=True)]
    finally:
        measuring.end()
