"""One self-contained HTML page: uses no network, and escapes all text of the program.

Text and charts work without the script. The script zooms the timeline, reads values from charts and
sorts tables. Its data is one block of JSON, escaped so that no text in it can end the block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

from unjam.doctor.facts.timeline import Timeline, measurement_timeline
from unjam.doctor.report import tune
from unjam.doctor.report.charts import ladder, line_chart
from unjam.doctor.rules.tuning import Tuned
from unjam.system.printable import printable
from unjam.units import duration, near

HINT = "point at a bar, or focus the chart: arrow keys select, + and − zoom, 0 shows all"


class HtmlPage:
    """Collects the sections of a page, and the data that the script needs."""

    def __init__(self, title: str, version: str) -> None:
        self._title, self._version = title, version
        self._body: list[str] = []
        self._names: list[tuple[str, str]] = []
        self._data: dict[str, list[Any]] = {"timelines": [], "charts": []}

    def add(self, *parts: str) -> None:
        """Append HTML that is already escaped."""
        self._body += [part for part in parts if part]

    def heading(self, words: str) -> None:
        """Start a section, with a link at the top of the page."""
        name = f"s{len(self._names)}"
        self._names.append((name, words))
        self.add(f'<h2 id="{name}">{escape(words)}</h2>')

    def picture(self, picture: Timeline | None, words: str) -> None:
        """Append the timeline, charts and slowest samples of one loader."""
        if picture is None:
            return
        if picture.bars or picture.waits:
            self.heading(f"Timeline: {words}")
            self._timeline(picture)
        for series in picture.series:
            if not any(len(line) > 1 for line in series.lines.values()):
                continue
            svg, facts = line_chart(series)
            number = len(self._data["charts"])
            self._data["charts"].append(facts)
            self.add(
                f"<h3>{escape(series.title)}</h3>",
                f'<figure data-chart="{number}" class="chart">{svg}<figcaption aria-live="polite">{escape(series.unit)}'
                f"{_keys(list(series.lines))}</figcaption></figure>",
            )
        self._slow(picture.slow, words)

    def _timeline(self, picture: Timeline) -> None:
        number = len(self._data["timelines"])
        self._data["timelines"].append({
            "rows": picture.rows,
            "span": round(picture.span, 6),
            "waits": [[round(at, 6), round(seconds, 6)] for at, seconds in picture.waits],
            "bars": [
                [
                    bar.row,
                    *(round(seconds, 6) for seconds in (bar.start, bar.fetch, bar.collate, bar.pack, bar.copy)),
                    bar.name,
                    bar.samples,
                    bar.slow,
                    round(bar.slow_seconds, 6),
                    round(bar.share, 3),
                ]
                for bar in picture.bars
            ],
        })  # fmt: skip
        tools = "".join(
            f'<button type="button" data-act="{act}" aria-label="{label}">{sign}</button>'
            for act, label, sign in (
                ("in", "zoom in", "+"),
                ("out", "zoom out", "−"),
                ("left", "earlier", "←"),
                ("right", "later", "→"),
                ("all", "show all", "all"),
            )
        )
        notes = [picture.note] if picture.note else []
        if any(bar.name.endswith(" batches") for bar in picture.bars):
            notes.append("each bar is a slice of time; a stronger colour means a busier worker")
        said = f" — {escape('; '.join(notes))}" if notes else ""
        parts = [("fetch", "--fetch")]
        parts += [("collate", "--collate")] if any(bar.collate for bar in picture.bars) else []
        parts += [("pack", "--pack")] if any(bar.pack for bar in picture.bars) else []
        parts += [("copy to the device", "--copy")] if any(bar.copy for bar in picture.bars) else []
        parts += [("waiting", "--wait")] if picture.waits else []
        keys = "".join(f'<span class="key" style="background:var({name})"></span>{words}' for words, name in parts)
        self.add(
            f'<p class="soft">{keys}{said}</p>',
            f'<figure data-timeline="{number}" data-hint="{HINT}"><div class="tools">{tools}</div>'
            f'<canvas tabindex="0" role="application" aria-label="timeline of {len(picture.rows)} rows"></canvas>'
            f'<figcaption aria-live="polite">{HINT}</figcaption></figure>',
        )

    def _slow(self, samples: tuple[tuple[str, float, str, str], ...], words: str) -> None:
        if len(samples) < 2:
            return
        self.heading(f"Slowest samples: {words}")
        rows: list[list[Cell]] = [
            [index, near(file) if file else "", worker, (duration(seconds), seconds)]
            for index, seconds, worker, file in samples
        ]
        if not any(file for *_, file in samples):
            rows = [[row[0], *row[2:]] for row in rows]
        head = ("sample", "file", "loaded by", "time") if len(rows[0]) == 4 else ("sample", "loaded by", "time")
        self.add(table(head, rows, sortable=True))

    def environment(self, known: dict[str, str]) -> None:
        """Append the table of the environment."""
        self.heading("Environment")
        self.add(table(("", ""), [[name, value] for name, value in {"unjam": self._version, **known}.items()]))

    def html(self, headline: str, *top: str) -> str:
        """Return the whole page; `top` comes before all sections."""
        links = "".join(f'<a href="#{name}">{escape(words)}</a>' for name, words in self._names)
        nav = f"<nav>{links}</nav>" if len(self._names) > 2 else ""
        # no text in it may end the script block or start another
        data = (
            json.dumps(self._data, separators=(",", ":"))
            .replace("<", "\\u003c")
            .replace(">", "\\u003e")
            .replace("&", "\\u0026")
        )
        style, script = (
            resources.files("unjam.doctor.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")
        )
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
        return printable(
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
            f'initial-scale=1"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(self._title)}</title>'
            f"<style>{style}</style></head><body><main><h1>{escape(headline)}</h1>"
            + "\n".join([*top, nav, *self._body])
            + f'</main><script type="application/json" id="data">{data}</script><script>{script}</script></body></html>'
        )


Cell = str | tuple[str, float | None]


def table(head: tuple[str, ...], rows: list[list[Cell]], *, sortable: bool = False, chosen: int = -1) -> str:
    """Return a table. A cell is a text, or a text and the number to sort by."""
    pairs = [[cell if isinstance(cell, tuple) else (cell, None) for cell in row] for row in rows]
    numbers = {at for row in pairs[:1] for at, (_, value) in enumerate(row) if value is not None}
    lines = []
    for place, row in enumerate(pairs):
        cells = "".join(
            f"<td{_class(at in numbers)}{f' data-value={value:.9g}' if value is not None else ''}>{escape(text)}</td>"
            for at, (text, value) in enumerate(row)
        )
        lines.append(f"<tr{' class=chosen' if place == chosen else ''}>{cells}</tr>")
    names = "".join(f"<th{_class(at in numbers)}>{escape(name)}</th>" for at, name in enumerate(head))
    top = f"<thead><tr>{names}</tr></thead>" if any(head) else ""
    kind = ' class="sortable"' if sortable else ""
    return f'<div class="scroll"><table{kind}>{top}<tbody>{"".join(lines)}</tbody></table></div>'


def _class(number: bool) -> str:  # noqa: FBT001 - the only argument
    return ' class="number"' if number else ""


def _keys(names: list[str]) -> str:
    if len(names) < 2:
        return ""
    colors = ("--fetch", "--collate", "--pack", "#b668c9", "#c9a227", "--wait")
    found = []
    for number, name in enumerate(names[:24]):
        paint = colors[number % 6]
        paint = f"var({paint})" if paint.startswith("--") else paint
        found.append(f'<span class="key" style="background:{paint}"></span>{escape(name)}')
    return "".join(found)


def of_tune(tuned: Tuned, version: str, title: str) -> str:
    """Return the page of `unjam tune`."""
    tune_result = tuned.tune_result
    page = HtmlPage(title, version)
    settings = tune_result.settings()
    page.heading("Throughput by number of workers")
    page.add(f"<figure>{ladder(tuned)}</figure>")
    rows: list[list[Cell]] = []
    for setting in settings:
        texts, one = tune.row(tuned, setting), tune_result.last(setting)
        values: list[float | None] = [None, None, tune_result.rate(setting), None, one.first, one.turn or 0.0]
        values += [one.workers_cpu + one.main_cpu, float(one.memory), None]
        rows.append([*zip(texts, values, strict=True)])
    chosen = settings.index(tuned.choice) if tuned.choice in settings else -1
    page.add(table(tune.HEAD, rows, sortable=True, chosen=chosen))
    if tuned.parts:
        page.heading("Where a sample's time goes")
        page.add(_stack(tuned))
    for reason in tuned.stops:
        page.add(
            f'<section class="card note"><h3>{escape(reason.title)}</h3>'
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in reason.evidence)}</ul>"
            f'<span class="word">{reason.confidence.value}</span></section>'
        )
    shown = tune.profiled(tune_result)
    if shown is not None:
        profile(page, shown.profile, str(shown.setting))
    choice = tuned.choice
    if choice is not None:
        alike = [one for one in tune_result.measurements if one.timeline and one.setting.workers == choice.workers]
        for one in sorted(alike, key=lambda one: one.setting != choice)[:1]:
            page.picture(measurement_timeline(one), str(one.setting))
    page.environment(
        {
            "dataset": tune_result.dataset,
            "processors": str(tune_result.processors),
            "took": duration(tune_result.seconds),
        }
    )
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in tuned.notes)
    code = (
        f'<section class="card ok"><h3>Code to paste</h3><pre>{escape(tuned.code)}</pre></section>'
        if tuned.code
        else ""
    )
    return page.html(tune.verdict(tuned), f'<p class="soft">{escape(title)}</p>', notes, code)


def _stack(tuned: Tuned) -> str:
    whole = sum(seconds for _, seconds in tuned.parts)
    parts = "".join(
        f'<i class="k{at}" style="width:{seconds / whole:.2%}" title="{escape(name)}"></i>'
        for at, (name, seconds) in enumerate(tuned.parts)
    )
    rows: list[list[Cell]] = [
        [name, (duration(seconds), seconds), (f"{seconds / whole:.0%}", seconds / whole)]
        for name, seconds in tuned.parts
    ]
    return f'<div class="stack" role="img" aria-label="parts of a sample">{parts}</div>' + table(
        ("", "time of a worker", ""), rows
    )


def profile(page: HtmlPage, found: Mapping[str, Any] | None, words: str) -> None:
    """Append the transforms and lines of a profile. `words`: what was profiled."""
    if not found:
        return
    if found["transforms"]:
        page.heading(f"Transforms: {words}")
        whole = sum(each["own"] for each in found["transforms"]) or 1.0
        page.add(
            table(
                ("transform", "attribute", "calls", "each", "own time"),
                [
                    [
                        each["name"],
                        each["path"],
                        (f"{each['count']:,}", float(each["count"])),
                        (duration(each["own"] / each["count"]), each["own"] / each["count"]),
                        (f"{each['own'] / whole:.0%}", each["own"]),
                    ]
                    for each in found["transforms"]
                ],
                sortable=True,
            )
        )
    if found["lines"]:
        page.heading(f"Lines: {words}")
        page.add(
            '<p class="soft">share of the stack samples of busy workers</p>',
            table(
                ("of the time", "line", "code", "inside", "stage"),
                [
                    [
                        (f"{each['share']:.1%}", each["share"]),
                        f"{near(each['file'])}:{each['line']}",
                        each["text"],
                        each["inside"],
                        each["stage"],
                    ]
                    for each in found["lines"][:20]
                ],
                sortable=True,
            ),
        )
