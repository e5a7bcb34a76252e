"""Programs until the time is over; a difference is confirmed, shrunk and kept."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import HypothesisException

from fuzz.compare import Difference, differences
from fuzz.coverage import Coverage
from fuzz.generate import programs
from fuzz.intended_differences import explain
from fuzz.processes import Sides
from fuzz.program import Loader, Program

SHRINK_SECONDS = 60


class OutOfTime(BaseException):
    """No exception of Hypothesis's business: it passes through."""


def words_of(plan: Loader) -> set[str]:
    """The names that a loader's description uses."""
    failure = () if plan.failure is None else (f"{plan.failure.place} fails", plan.failure.kind)
    data = plan.data
    return {
        *failure,
        *data.leaves,
        data.kind,
        data.extra,
        data.structure,
        f"init {plan.init}",
        f"collate {plan.collate}",
    }


class Differs(Exception):
    """A program that shows a difference."""


@dataclass
class Finding:
    """A real difference, and the smallest program that shows it."""

    signature: str
    program: Program
    difference: Difference
    found_after: int
    seconds: float
    confirmed: bool = True


class Trial:
    """A program, and the smaller ones that Hypothesis tries when it shows a difference."""

    def __init__(self, search: Search, shrink_seconds: float):
        self.goal: str | None = None
        self.smallest: Program | None = None
        self._search, self._shrink_seconds = search, shrink_seconds
        self._known: dict[str, bool] = {}
        self._until = 0.0
        self._first = True

    def fails(self, program: Program) -> bool:
        """Whether the program shows the difference that was seen first."""
        if self._first:
            self._first = False  # always the simplest program
            return False
        key = program.to_json()
        if key not in self._known:
            self._known[key] = self._try(program)
            if self._known[key]:
                self.smallest = program
        return self._known[key]

    def _try(self, program: Program) -> bool:
        if self.goal is None:
            self.goal = self._search.check(program)
            self._until = time.monotonic() + self._shrink_seconds
            return self.goal is not None
        return time.monotonic() < self._until and self._search.shows(program, self.goal)


class Search:
    """Runs programs on both sides and keeps what it finds."""

    def __init__(
        self, seconds: float, *, stop_at_first: bool = False, verbose: bool = False, shrink: bool = True, leave_out=()
    ):
        self.begin = time.monotonic()
        self.until = self.begin + seconds
        self.sides = Sides()
        self.count = 0
        self.coverage = Coverage()
        self.on_purpose: Counter[str] = Counter()
        self.findings: dict[str, Finding] = {}
        self.unconfirmed: list[Finding] = []
        self.torch_varies = 0
        self._leave_out = set(leave_out)
        self._stop_at_first, self._verbose, self._shrink = stop_at_first, verbose, shrink

    def run(self, seed: int) -> None:
        """Round after round of programs; the same ones for the same seed."""
        number = 0
        try:
            while time.monotonic() < self.until and not (self._stop_at_first and self.findings):
                self._round(seed * 1_000_003 + number)
                number += 1
        except OutOfTime:
            pass
        finally:
            self.sides.close()

    def _round(self, seed: int) -> None:
        """One new program, and where it shows a difference, smaller ones.

        Hypothesis begins each run with the simplest program of all and changes what it has tried before; one run for each
        program makes them differ more from each other.
        """
        trial = Trial(self, SHRINK_SECONDS if self._shrink else 0)

        @hypothesis.seed(seed)
        @settings(
            max_examples=2,
            phases=[Phase.generate, Phase.shrink],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(programs())
        def body(program: Program) -> None:
            if trial.fails(program):
                raise Differs

        try:
            body()
        except (Differs, HypothesisException) as problem:
            if not trial.goal:
                raise
            if self._verbose and not isinstance(problem, Differs):
                print(repr(problem), file=sys.stderr)
        finally:
            if trial.goal and trial.smallest:
                self._keep_smallest(trial.goal, trial.smallest)

    def _keep_smallest(self, signature: str, program: Program) -> None:
        finding = self.findings[signature]
        if program != finding.program:
            finding.program = program
            found = self.real(program)
            finding.difference = next((one for one in found if one.signature == signature), finding.difference)
        if self._verbose:
            report(finding)

    def check(self, program: Program) -> str | None:
        """Run a program; the signature of a difference that was not seen before, if it shows one."""
        if time.monotonic() > self.until:
            raise OutOfTime
        if any(self._leave_out & words_of(plan) for plan in program.loaders):
            return None
        self.count += 1
        self.coverage.add(program)
        if os.environ.get("UNJAM_FUZZ_TRACE"):
            print(f"{time.monotonic() - self.begin:.1f} {program.to_json()}", file=sys.stderr, flush=True)
        torchs, ours = self.sides.both(program)
        if os.environ.get("UNJAM_FUZZ_TRACE"):
            print(f"   torch {torchs.get('seconds')} unjam {ours.get('seconds')}", file=sys.stderr, flush=True)
        found = self._unexplained(program, torchs, ours, count=True)
        if not found or found[0].signature in self.findings:
            return None
        again = self._confirm(program, found, torchs, ours)
        seconds = time.monotonic() - self.begin
        if again is None:
            if not any(one.signature == found[0].signature for one in self.unconfirmed):
                self.unconfirmed.append(
                    Finding(found[0].signature, program, found[0], self.count, seconds, confirmed=False)
                )
            return None
        if again.signature in self.findings:
            return None
        self.findings[again.signature] = Finding(again.signature, program, again, self.count, seconds)
        return again.signature

    def _unexplained(self, program: Program, torchs: dict, ours: dict, *, count: bool = False) -> list[Difference]:
        found = []
        for difference in differences(torchs, ours):
            entry = explain(program, difference, torchs, ours)
            if entry is None:
                found.append(difference)
            elif count:
                self.on_purpose[entry.name] += 1
        return found

    def _confirm(self, program: Program, found: list[Difference], torchs: dict, ours: dict) -> Difference | None:
        """The difference as it is in fresh processes, unless torch differs from itself in the same way."""
        for attempt in range(3):
            torchs_again, ours_again = self.sides.both(program, fresh=True, slower=1 + attempt)
            if not differences(torchs_again, ours) or not differences(torchs, ours_again):
                self.torch_varies += 1
                return None
            if again := self._unexplained(program, torchs_again, ours_again):
                return again[0]
        # never again: other data are a mistake even once, a late end on a busy machine is not
        return found[0] if "batch" in found[0].path else None

    def real(self, program: Program) -> list[Difference]:
        """The differences in fresh processes that are not on purpose."""
        return self._unexplained(program, *self.sides.both(program, fresh=True))

    def shows(self, program: Program, signature: str) -> bool:
        """Whether a program shows that difference, in a process that may have run others before."""
        return any(one.signature == signature for one in self._unexplained(program, *self.sides.both(program)))


def report(finding: Finding) -> None:
    """Print a finding, with a program to paste."""
    print(f"\nDIFFERENCE {finding.signature} (program {finding.found_after}, {finding.seconds:.0f} s)")
    print(f"  {finding.difference}")
    print(f"  {finding.program.to_python()}")
    print(f"  {finding.program.to_json()}", flush=True)
