"""Small pictures in SVG: what the workers did when, how memory and throughput went. Plain text, no script, no network."""

from __future__ import annotations

from html import escape

from unjam.evidence.run import LoaderRun
from unjam.evidence.trial import Sample, Trial

WIDTH = 900
LEFT = 86
ROW = 22
MOST_BARS = 1500


def timeline(trial: Trial) -> str:
    """A row for each worker: when it loaded which sample."""
    samples = [s for s in trial.samples if s.at]
    workers = sorted({s.worker for s in samples})
    if not samples:
        return ""
    start = min(s.at - s.seconds for s in samples)
    span = max(max(s.at for s in samples) - start, 1e-6)
    height = ROW * len(workers) + 30
    parts = [_open(height, "timeline of the workers")]
    for row, worker in enumerate(workers):
        y = row * ROW + 4
        parts.append(f'<text x="0" y="{y + 13}">{"main" if worker < 0 else f"worker {worker}"}</text>')
        parts += [_bar(s, start, span, y) for s in _merged([s for s in samples if s.worker == worker])]
    parts.append(_axis(span, height - 10))
    return "".join([*parts, "</svg>"])


def _merged(samples: list[Sample]) -> list[tuple[str, float, float, int]]:
    """Name, begin, end and number: neighbours put together where there are too many to see."""
    each = max(1, len(samples) // MOST_BARS + 1)
    found = []
    for at in range(0, len(samples), each):
        group = samples[at : at + each]
        name = group[0].index if len(group) == 1 else f"{group[0].index} … {group[-1].index}"
        found.append((name, group[0].at - group[0].seconds, group[-1].at, len(group)))
    return found


def _bar(bar: tuple[str, float, float, int], start: float, span: float, y: int) -> str:
    name, begin, end, number = bar
    x = LEFT + (begin - start) / span * (WIDTH - LEFT)
    width = max(0.6, (end - begin) / span * (WIDTH - LEFT) - 0.4)
    words = f"sample {name}: {(end - begin) * 1000:.2f} ms" if number == 1 else f"samples {name}"
    return f'<rect class="bar" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}"><title>{escape(words)}</title></rect>'


def throughput(trial: Trial) -> str:
    """Batches that arrived, over time."""
    points = [(b.at, float(number)) for number, b in enumerate(trial.batches, 1)]
    return _lines({"batches": points}, "batches", "batches that arrived")


def memory(trial: Trial) -> str:
    """Each worker's own memory over time."""
    series: dict[str, list[tuple[float, float]]] = {}
    for reading in trial.memory:
        series.setdefault(f"worker {reading.worker}", []).append((reading.at, reading.private / 1e6))
    return _lines(series, "MB", "memory of each worker's own")


def _lines(series: dict[str, list[tuple[float, float]]], unit: str, title: str) -> str:
    points = [point for line in series.values() for point in line]
    if len(points) < 2:
        return ""
    start, end = min(t for t, _ in points), max(t for t, _ in points)
    top = max(value for _, value in points) or 1.0
    span, height = max(end - start, 1e-6), 150
    parts = [_open(height + 30, title)]
    parts.append(f'<text x="0" y="14">{top:,.0f} {escape(unit)}</text><text x="0" y="{height}">0</text>')
    for number, (name, line) in enumerate(series.items()):
        thin = line[:: max(1, len(line) // 400)]
        path = " ".join(
            f"{LEFT + (t - start) / span * (WIDTH - LEFT):.1f},{height - value / top * (height - 10):.1f}"
            for t, value in thin
        )
        parts.append(f'<polyline class="line c{number % 6}" points="{path}"><title>{escape(name)}</title></polyline>')
    parts.append(_axis(span, height + 20))
    return "".join([*parts, "</svg>"])


def _axis(span: float, y: int) -> str:
    marks = [
        f'<text x="{LEFT + part * (WIDTH - LEFT) / 4:.0f}" y="{y}" class="tick">{span * part / 4:.2f} s</text>'
        for part in range(4)
    ]
    return "".join([*marks, f'<text x="{WIDTH}" y="{y}" text-anchor="end" class="tick">{span:.2f} s</text>'])


def _open(height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}" preserveAspectRatio="xMinYMin meet">'


def stacked_time(loader: LoaderRun) -> str:
    """Training and waiting over the time of a run: how much of each moment was spent waiting."""
    if not loader.waits:
        return ""
    start, end = loader.waits[0].asked, max(loader.waits[-1].got, loader.waits[0].asked + 1)
    bins = 90
    waited = [0.0] * bins
    for wait in loader.waits:
        first, last = (min(bins - 1, int((at - start) / (end - start) * bins)) for at in (wait.asked, wait.got))
        for at in range(first, last + 1):
            low, high = start + at * (end - start) / bins, start + (at + 1) * (end - start) / bins
            waited[at] += max(0.0, min(high, wait.got) - max(low, wait.asked))
    height, wide = 90, (WIDTH - LEFT) / bins
    parts = [_open(height + 24, "share of the time spent waiting for data"), '<text x="0" y="14">waiting</text>']
    for at, nanoseconds in enumerate(waited):
        share = min(1.0, nanoseconds / ((end - start) / bins))
        tall = share * height
        parts.append(
            f'<rect class="bar" x="{LEFT + at * wide:.1f}" y="{height - tall:.1f}" width="{wide - 0.6:.1f}" height="{tall:.1f}">'
            f"<title>{share:.0%} of this moment waiting</title></rect>"
        )
    parts.append(_axis((end - start) / 1e9, height + 16))
    return "".join([*parts, "</svg>"])
