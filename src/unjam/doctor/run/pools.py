"""Tests a program on another pool, and compares pools: runs the program itself for some batches on each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unjam.doctor.run.launch import CannotRun
from unjam.doctor.run.settings import Settings
from unjam.doctor.run.short_run import short_run
from unjam.loader.pool_spec import parse_pool
from unjam.units import count, duration

# seconds that a trial may take
TRIAL_SECONDS = 300.0
# a smaller ratio of two rates does not count as a difference
CLEAR = 1.1


@dataclass(frozen=True, slots=True)
class PoolTrial:
    """What happened on a pool. rate: batches in a second, after the first one; 0: unknown.

    nodes: name, batches and bytes of each. problem: why it does not work; empty: it works.
    """

    pool: str
    batches: int = 0
    rate: float = 0.0
    waited: float = 0.0
    started: float = 0.0
    nodes: tuple[tuple[str, int, int], ...] = ()
    problem: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "pool": self.pool,
            "batches": self.batches,
            "rate": round(self.rate, 3),
            "waited": round(self.waited, 3),
            "started": round(self.started, 3),
            "nodes": [{"node": name, "batches": batches, "bytes": size} for name, batches, size in self.nodes],
            "problem": self.problem,
            "note": self.note,
        }


def check(pools: list[str], target: str, *, module: bool) -> None:
    """Raise ValueError if one of the pools is unknown, or if the target is no program."""
    if target.endswith(".ipynb") or (":" in target and not module):
        raise ValueError("--pool needs a script or a module")
    for one in pools:
        try:
            parse_pool(one)
        except ValueError as error:
            raise ValueError("--pool must be ray, or ray:64 for 64 workers") from error


def try_pools(
    pools: list[str],
    target: str,
    arguments: list[str],
    batches: int,
    say: Callable[[str, float], None],
    *,
    module: bool,
) -> list[PoolTrial]:
    """Run the program on one pool after the other."""
    found = []
    for one in pools:
        say(f"running {target} on {one}, for {batches} batches", 0.0)
        settings = Settings(options={} if one == "processes" else {"pool": one}, stop_after=batches)
        try:
            seen = short_run(target, arguments, settings, lambda: say("", 0.0), TRIAL_SECONDS, module=module)
            found.append(_trial(one, seen))
        except CannotRun as error:
            found.append(PoolTrial(one, problem=_last_error(str(error))))
    return found


def _trial(pool: str, seen: dict[str, Any]) -> PoolTrial:
    """Return what happened on a pool, from the summary of the program."""
    used = max(seen["loaders"], key=lambda one: one["batches"], default=None)
    if used is None:
        return PoolTrial(pool, problem=seen["ended"] or "the program used no loader")
    failures = "; ".join(one["what"] for one in used["failures"] if one["decision"] == "raise")
    problem = failures or (seen["ended"] if not used["batches"] else "")
    if problem:
        problem = _whole(problem, seen["output"])
    waited = used["waited"] - used["started"]  # without the first batch of each epoch
    spent = waited + used["trained"]
    return PoolTrial(
        pool,
        used["batches"],
        (used["batches"] - used["epochs"]) / spent if spent > 0 else 0.0,
        waited / spent if spent > 0 else 0.0,
        used["started"],
        tuple((one["node"], one["batches"], one["bytes"]) for one in used["nodes"]),
        problem,
        used["does_not_pay"],
    )


def _last_error(output: str) -> str:
    """Return the error that ended a program, without its frames."""
    before, traceback, after = output.rpartition("Traceback (most recent call last):")
    lines = after.splitlines() if traceback else before.splitlines()
    first = next((at for at, line in enumerate(lines) if line and not line.startswith(" ")), None)
    return output if not traceback or first is None else "\n".join(lines[first:])


def _whole(problem: str, output: str) -> str:
    """Return an error with the lines that follow its first one in the program's output."""
    lines = output.splitlines()
    at = next((at for at, line in enumerate(lines) if problem[:60] in line), None)
    if at is None:
        return problem
    return "\n".join([problem, *(line for line in lines[at + 1 : at + 8] if line.strip() and "Traceback" not in line)])


def as_json(trials: list[PoolTrial], target: str, version: str) -> str:
    """Return the documented JSON object."""
    found = {"schema": 1, "unjam": version, "target": target, "trials": [one.as_dict() for one in trials]}
    return json.dumps(found, indent=2)


def lines(trials: list[PoolTrial]) -> list[str]:
    """Return what happened in words, and a verdict if there were several trials."""
    found = [line for one in trials for line in _words(one)]
    return [*found, verdict(trials)] if len(trials) > 1 else found


def _words(trial: PoolTrial) -> list[str]:
    if trial.problem:
        return [f"{trial.pool}: does not work:", *(f"  {line}" for line in trial.problem.splitlines())]
    at = ", ".join(
        f"{count(batches, 'batch', 'batches')} of {size / max(1, batches) / 1e6:.2f} MB from node {name}"
        for name, batches, size in trial.nodes
    )
    found = [
        f"{trial.pool}: works; {at or count(trial.batches, 'batch', 'batches')}; first batch after {duration(trial.started)}"
    ]
    return [*found, *([f"  {trial.note}"] if trial.note else [])]


def verdict(trials: list[PoolTrial]) -> str:
    """Return one line: which of the pools is the fastest."""
    good = [one for one in trials if not one.problem and one.rate]
    if not good:
        return "no pool works"
    best = max(good, key=lambda one: one.rate)
    first = good[0]
    if best is first or best.rate < CLEAR * first.rate:
        return f"no other pool is clearly faster than {first.pool}: {first.rate:.1f} batches/s, training waits {first.waited:.0%} of the time"
    return f"{best.pool} is {best.rate / first.rate:.1f} times as fast as {first.pool}: {best.rate:.1f} batches/s"
