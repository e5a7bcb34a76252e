"""A climb in words: a table, a picture of bars, the reasons and the line to paste."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from unjam.doctor.facts.tune_measurements import Climb, Measured, Rung
from unjam.doctor.report.profile import profile_lines, short_time
from unjam.doctor.report.terminal import escape
from unjam.doctor.rules.judging import count
from unjam.doctor.rules.tuning import Tuned

SCHEMA = 1
BAR = 34
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def verdict(tuned: Tuned) -> str:
    """One line that stands alone."""
    climb, choice = tuned.climb, tuned.choice
    if choice is None:
        return "no setting came through"
    rate = f"{climb.rate(choice):,.0f} samples/s"
    if tuned.needed is None:
        return f"{choice}: {rate}, the cheapest of those that are nearly the fastest"
    if tuned.enough:
        return f"{choice}: {rate}, and the training takes {tuned.needed:,.0f}: enough, and the cheapest that is"
    return f"the data stays the bottleneck: {choice} gives {rate}, and the training could take {tuned.needed:,.0f}"


def show(tuned: Tuned, console: Console) -> None:
    """On a terminal or in a pipe."""
    climb = tuned.climb
    console.print(f"[bold]{escape(verdict(tuned))}[/bold]")
    where = f" at {climb.made_at}" if climb.made_at else ""
    console.print(
        f"{escape(climb.dataset)}{escape(where)}, batches of {climb.batch_size:.4g}, {climb.processors} processors\n"
    )
    console.print(_table(tuned))
    console.print()
    for line in bars(tuned):
        console.print(escape(line), soft_wrap=True)
    if tuned.parts:
        whole = sum(seconds for _, seconds in tuned.parts)
        words = ", ".join(f"{name} {short_time(seconds)} ({seconds / whole:.0%})" for name, seconds in tuned.parts)
        console.print(f"\na sample takes {short_time(whole)} of a worker: {words}", soft_wrap=True)
    for reason in tuned.stops:
        console.print(f"{escape(reason.title)} ({reason.confidence.value})", soft_wrap=True)
        for line in reason.evidence:
            console.print(f"  {escape(line)}", soft_wrap=True)
    shown = profiled(climb)
    for line in profile_lines(shown.profile if shown else None):
        console.print(escape(line), soft_wrap=True)
    for note in tuned.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    if climb.stopped:
        console.print("note: stopped before its time; this is the best so far")
    if tuned.code:
        console.print(f"\n{escape(tuned.code)}", soft_wrap=True)


def _table(tuned: Tuned) -> Table:
    climb = tuned.climb
    table = Table(box=None, pad_edge=False)
    for name in (
        "",
        "setting",
        "samples/s",
        "spread",
        "first batch",
        "between epochs",
        "processors",
        "memory",
        "failures",
    ):
        table.add_column(
            name, justify="left" if name in ("", "setting", "failures") else "right", no_wrap=name != "failures"
        )
    for rung in climb.rungs():
        table.add_row(*(escape(cell) for cell in row(tuned, rung)))
    return table


def row(tuned: Tuned, rung: Rung) -> list[str]:
    """A setting's cells."""
    climb, one = tuned.climb, tuned.climb.last(rung)
    mark = "→" if rung == tuned.choice else "now" if rung == climb.as_is else ""
    bad = next((m for m in climb.of(rung) if not m.fine), None)
    if bad is not None:
        return [mark, str(rung), "", "", "", "", "", "", f"{bad.outcome}: {bad.note}"]
    low, high = climb.spread(rung)
    return [
        mark,
        str(rung),
        f"{climb.rate(rung):,.0f}",
        f"{low:,.0f}-{high:,.0f}" if low else "",
        short_time(min(m.first for m in climb.of(rung))),
        short_time(one.turn) if one.turn is not None else "",
        f"{one.workers_cpu + one.main_cpu:.1f}",
        f"{one.memory / 1e6:,.0f} MB",
        str(one.failed) if one.failed else "",
    ]


def bars(tuned: Tuned) -> list[str]:
    """The rates as bars; a line where the training's own rate is."""
    climb = tuned.climb
    known = {rung: climb.rate(rung) for rung in climb.rungs() if climb.rate(rung) > 0}
    if not known:
        return []
    most = max([*known.values(), tuned.needed or 0.0])
    width = max(len(str(rung)) for rung in known)
    lines = []
    for rung, rate in sorted(known.items(), key=lambda pair: (pair[0].driver, pair[0].workers, -pair[1])):
        full = rate / most * BAR
        bar = "█" * int(full) + _EIGHTHS[int((full - int(full)) * 8)].strip()
        lines.append(f"{rung!s:<{width}} {bar:<{BAR}} {rate:>10,.0f}")
    if tuned.needed:
        at = int(tuned.needed / most * BAR)
        lines.append(
            f"{'the training takes':<{width}} {' ' * max(0, at - 1)}│{'':<{max(0, BAR - at)}} {tuned.needed:>9,.0f}"
        )
    return lines


def profiled(climb: Climb) -> Measured | None:
    """The trial that was profiled, the one with the most to tell."""
    known = [one for one in climb.measured if one.profile and (one.profile["looks"] or one.profile["transforms"])]
    return max(known, key=lambda one: one.profile["looks"] if one.profile else 0) if known else None


def as_json(tuned: Tuned, version: str) -> str:
    """The documented object."""
    climb = tuned.climb
    return json.dumps(
        {
            "schema": SCHEMA,
            "unjam": version,
            "verdict": verdict(tuned),
            "choice": _rung(tuned.choice),
            "fastest": _rung(tuned.fastest),
            "enough": tuned.enough,
            "needed": tuned.needed,
            "step_seconds": climb.step,
            "step_from": climb.step_from,
            "arguments": tuned.line,
            "code": tuned.code,
            "stopped": climb.stopped,
            "seconds": round(climb.seconds, 2),
            "rungs": [
                {
                    **(_rung(rung) or {}),
                    "as_is": rung == climb.as_is,
                    "rate": round(climb.rate(rung), 2),
                    "spread": [round(rate, 2) for rate in climb.spread(rung)],
                    "first_batch": round(min(m.first for m in climb.of(rung)), 4),
                    "between_epochs": climb.last(rung).turn,
                    "processors": round(climb.last(rung).workers_cpu + climb.last(rung).main_cpu, 3),
                    "memory": climb.last(rung).memory,
                    "failed": climb.last(rung).failed,
                    "trials": [
                        {"outcome": m.outcome, "note": m.note, "rate": round(m.rate, 2)} for m in climb.of(rung)
                    ],
                }
                for rung in climb.rungs()
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


def _rung(rung: Rung | None) -> dict[str, Any] | None:
    if rung is None:
        return None
    return {
        "driver": rung.driver,
        "workers": rung.workers,
        "start": rung.start,
        "prefetch": rung.prefetch,
        "threads": rung.threads,
        "words": str(rung),
    }


def others(loaders: int) -> str:
    """What to say of the loaders that were not looked at."""
    return f"{count(loaders - 1, 'other loader')} of this program {'was' if loaders == 2 else 'were'} not looked at"
