"""The result of `unjam tune` as text: a table, bars, the reasons and the code to paste."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from unjam.doctor.facts.tune_measurements import Measurement, TuneResult, TuneSetting
from unjam.doctor.report.profile import profile_lines
from unjam.doctor.report.terminal import escape
from unjam.doctor.rules.tuning import Tuned
from unjam.units import count, duration

SCHEMA = 1
BAR = 34
# the names of the columns of `row`
HEAD = ("", "setting", "samples/s", "spread", "first batch", "between epochs", "processors", "memory", "failures")
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def verdict(tuned: Tuned) -> str:
    """Return the recommendation as one line."""
    tune_result, choice = tuned.tune_result, tuned.choice
    if choice is None:
        return "no setting succeeded"
    rate = f"{tune_result.rate(choice):,.0f} samples/s"
    if tuned.needed is None:
        return f"{choice}: {rate}, the cheapest setting that is nearly as fast as the fastest"
    if tuned.enough:
        return f"{choice}: {rate}, training needs {tuned.needed:,.0f}: fast enough, and the cheapest such setting"
    return f"data loading remains the bottleneck with {choice}: {rate}, training could use {tuned.needed:,.0f}"


def show(tuned: Tuned, console: Console) -> None:
    """Print everything to a terminal or a pipe."""
    tune_result = tuned.tune_result
    console.print(f"[bold]{escape(verdict(tuned))}[/bold]")
    where = f" at {tune_result.made_at}" if tune_result.made_at else ""
    console.print(
        f"{escape(tune_result.dataset)}{escape(where)}, batches of {tune_result.batch_size:.4g}, {count(tune_result.processors, 'processor')}\n"
    )
    console.print(_table(tuned))
    console.print()
    for line in bars(tuned):
        console.print(escape(line), soft_wrap=True)
    if tuned.parts:
        whole = sum(seconds for _, seconds in tuned.parts)
        words = ", ".join(f"{name} {duration(seconds)} ({seconds / whole:.0%})" for name, seconds in tuned.parts)
        console.print(f"\na worker needs {duration(whole)} for a sample: {words}", soft_wrap=True)
    for reason in tuned.stops:
        console.print(f"{escape(reason.title)} ({reason.confidence.value})", soft_wrap=True)
        for line in reason.evidence:
            console.print(f"  {escape(line)}", soft_wrap=True)
    shown = profiled(tune_result)
    for line in profile_lines(shown.profile if shown else None):
        console.print(escape(line), soft_wrap=True)
    for note in tuned.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if tune_result.stopped:
        console.print("note: stopped early; this is the best setting so far")
    if tuned.code:
        console.print(f"\n{escape(tuned.code)}", soft_wrap=True)


def _table(tuned: Tuned) -> Table:
    tune_result = tuned.tune_result
    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(
            name, justify="left" if name in ("", "setting", "failures") else "right", no_wrap=name != "failures"
        )
    for setting in tune_result.settings():
        table.add_row(*(escape(cell) for cell in row(tuned, setting)))
    return table


def row(tuned: Tuned, setting: TuneSetting) -> list[str]:
    """Return the cells of one setting."""
    tune_result, one = tuned.tune_result, tuned.tune_result.last(setting)
    mark = "→" if setting == tuned.choice else "now" if setting == tune_result.as_is else ""
    bad = next((m for m in tune_result.of(setting) if not m.fine), None)
    if bad is not None:
        return [mark, str(setting), "", "", "", "", "", "", f"{bad.outcome}: {bad.note}"]
    low, high = tune_result.spread(setting)
    return [
        mark,
        str(setting),
        f"{tune_result.rate(setting):,.0f}",
        f"{low:,.0f}-{high:,.0f}" if low else "",
        duration(min(m.first for m in tune_result.of(setting))),
        duration(one.turn) if one.turn is not None else "",
        f"{one.workers_cpu + one.main_cpu:.1f}",
        f"{one.memory / 1e6:,.0f} MB",
        str(one.failed) if one.failed else "",
    ]


def bars(tuned: Tuned) -> list[str]:
    """Return the rates as bars, with a mark at the rate that the training needs."""
    tune_result = tuned.tune_result
    known = tune_result.good_rates()
    if not known:
        return []
    most = max([*known.values(), tuned.needed or 0.0])
    width = max(len(str(setting)) for setting in known)
    lines = []
    for setting, rate in sorted(known.items(), key=lambda pair: (pair[0].driver, pair[0].workers, -pair[1])):
        full = rate / most * BAR
        bar = "█" * int(full) + _EIGHTHS[int((full - int(full)) * 8)].strip()
        lines.append(f"{setting!s:<{width}} {bar:<{BAR}} {rate:>10,.0f}")
    if tuned.needed:
        at = int(tuned.needed / most * BAR)
        lines.append(
            f"{'training needs':<{width}} {' ' * max(0, at - 1)}│{'':<{max(0, BAR - at)}} {tuned.needed:>9,.0f}"
        )
    return lines


def profiled(tune_result: TuneResult) -> Measurement | None:
    """Return the profiled measurement with the most observations."""
    known = [
        one for one in tune_result.measurements if one.profile and (one.profile["looks"] or one.profile["transforms"])
    ]
    return max(known, key=lambda one: one.profile["looks"] if one.profile else 0) if known else None


def as_json(tuned: Tuned, version: str) -> str:
    """Return the documented JSON object."""
    tune_result = tuned.tune_result
    return json.dumps(
        {
            "schema": SCHEMA,
            "unjam": version,
            "verdict": verdict(tuned),
            "choice": _setting(tuned.choice),
            "fastest": _setting(tuned.fastest),
            "enough": tuned.enough,
            "needed": tuned.needed,
            "step_seconds": tune_result.step,
            "step_from": tune_result.step_from,
            "arguments": tuned.line,
            "code": tuned.code,
            "stopped": tune_result.stopped,
            "seconds": round(tune_result.seconds, 2),
            "rungs": [
                {
                    **(_setting(setting) or {}),
                    "as_is": setting == tune_result.as_is,
                    "rate": round(tune_result.rate(setting), 2),
                    "spread": [round(rate, 2) for rate in tune_result.spread(setting)],
                    "first_batch": round(min(m.first for m in tune_result.of(setting)), 4),
                    "between_epochs": tune_result.last(setting).turn,
                    "processors": round(tune_result.last(setting).workers_cpu + tune_result.last(setting).main_cpu, 3),
                    "memory": tune_result.last(setting).memory,
                    "failed": tune_result.last(setting).failed,
                    "trials": [
                        {"outcome": m.outcome, "note": m.note, "rate": round(m.rate, 2)}
                        for m in tune_result.of(setting)
                    ],
                }
                for setting in tune_result.settings()
            ],
            "where_time_goes": dict(tuned.parts),
            "stops": [
                {"because": one.words, "confidence": one.confidence.value, "evidence": list(one.evidence)}
                for one in tuned.stops
            ],
            "notes": list(tuned.notes),
        },
        indent=2,
    )


def _setting(setting: TuneSetting | None) -> dict[str, Any] | None:
    return None if setting is None else {**asdict(setting), "words": str(setting)}


def others(loaders: int) -> str:
    """Return a note about the loaders that were not tuned."""
    return f"{count(loaders - 1, 'other loader')} of this program {'was' if loaders == 2 else 'were'} not tuned"
