"""Charts in SVG. They work without a script; the page's script adds a cursor."""

from __future__ import annotations

from html import escape
from typing import Any

from unjam.doctor.facts.timeline import Series
from unjam.doctor.rules.tuning import Tuned
from unjam.units import duration

WIDTH = 900
LEFT = 86
HEIGHT = 150


def line_chart(series: Series) -> tuple[str, dict[str, Any]]:
    """Return the chart, and the data for its cursor."""
    points = [point for line in series.lines.values() for point in line]
    start, end = min(t for t, _ in points), max(t for t, _ in points)
    top = max(value for _, value in points) or 1.0
    span = max(end - start, 1e-9)
    parts = [_open(HEIGHT + 30, f"{series.title}, {series.unit}", focus=True)]
    parts.append(f'<text x="0" y="14">{_short(top)}</text><text x="0" y="{HEIGHT}">0</text>')
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{HEIGHT}" y2="{HEIGHT}"/>')
    for number, (name, line) in enumerate(series.lines.items()):
        path = " ".join(
            f"{LEFT + (t - start) / span * (WIDTH - LEFT):.1f},{HEIGHT - value / top * (HEIGHT - 10):.1f}"
            for t, value in line
        )
        parts.append(f'<polyline class="line c{number % 6}" points="{path}"><title>{escape(name)}</title></polyline>')
    parts.append(f'<line class="cursor" y1="0" y2="{HEIGHT}" x1="0" x2="0"/>')
    marks = [
        f'<text x="{LEFT + part * (WIDTH - LEFT) / 4:.0f}" y="{HEIGHT + 20}"{" text-anchor=end" if part == 4 else ""}>'
        f"{duration(span * part / 4)}</text>"
        for part in range(5)
    ]
    facts = {
        "lines": {name: [[round(t, 4), round(v, 3)] for t, v in line] for name, line in series.lines.items()},
        "unit": series.unit, "start": round(start, 4), "end": round(end, 4), "left": LEFT, "width": WIDTH,
    }  # fmt: skip
    return "".join([*parts, *marks, "</svg>"]), facts


def ladder(tuned: Tuned) -> str:
    """Return the chart of rates by number of workers: unjam's loader, torch's, and the training."""
    tune_result = tuned.tune_result
    known = tune_result.good_rates()
    if not known:
        return ""
    steps = sorted({setting.workers for setting in known})
    highs = [tune_result.spread(setting)[1] for setting in known]
    top = max([*known.values(), *highs, tuned.needed or 0.0]) * 1.05
    tall = 240

    def x(workers: int) -> float:
        return LEFT + 30 + (steps.index(workers) + 0.5) * (WIDTH - LEFT - 60) / len(steps)

    def y(rate: float) -> float:
        return tall - rate / top * (tall - 14)

    parts = [_open(tall + 40, "samples per second by number of workers")]
    for part in (0, 0.25, 0.5, 0.75, 1):
        at = y(top / 1.05 * part)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_short(top / 1.05 * part)}</text>')
    parts += [f'<text x="{x(n):.1f}" y="{tall + 18}" text-anchor="middle">{n}</text>' for n in steps]
    parts.append(f'<text x="{WIDTH / 2 + LEFT / 2:.0f}" y="{tall + 35}" text-anchor="middle">workers</text>')
    for number, driver in enumerate(("unjam", "torch")):
        plain = sorted((r for r in known if r.driver == driver and r.is_plain), key=lambda setting: setting.workers)
        path = " ".join(f"{x(setting.workers):.1f},{y(known[setting]):.1f}" for setting in plain)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
    if tuned.needed:
        at = y(tuned.needed)
        parts.append(f'<line class="need" x1="{LEFT}" x2="{WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{WIDTH}" y="{at - 5:.1f}" text-anchor="end">training needs {tuned.needed:,.0f}</text>')
    for setting, rate in known.items():
        low, high = tune_result.spread(setting)
        center, kind = x(setting.workers), "c1" if setting.driver == "torch" else "c0"
        words = f"{setting}: {rate:,.0f} samples/s, {low:,.0f} to {high:,.0f}"
        if low:
            parts.append(
                f'<line class="line {kind}" x1="{center:.1f}" x2="{center:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
            )
        chosen = " chosen" if setting == tuned.choice else ""
        parts.append(
            f'<circle class="dot {kind}{chosen}" cx="{center:.1f}" cy="{y(rate):.1f}" r="5" tabindex="0" role="img" '
            f'aria-label="{escape(words)}"><title>{escape(words)}</title></circle>'
        )
    key = (
        '<span class="key" style="background:var(--fetch)"></span>unjam<span class="key" style="background:var(--collate)">'
        '</span>torch<span class="key" style="background:var(--ok)"></span>recommended'
    )
    return "".join([*parts, "</svg>", f"<figcaption>{key}</figcaption>"])


def _open(height: int, label: str, *, focus: bool = False) -> str:
    reach = ' tabindex="0"' if focus else ""
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img"{reach} aria-label="{escape(label)}" preserveAspectRatio="xMinYMin meet">'


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
