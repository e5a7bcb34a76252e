"""What workers and consumer did over time, reduced to a size that fits a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unjam.doctor.facts.run import LoaderRun, TimedCopy
from unjam.doctor.facts.trial import Trial
from unjam.doctor.facts.tune_measurements import Measurement

MOST_BARS = 4000
MOST_WAITS = 2000
POINTS = 240
MOST_SLOW = 25


@dataclass(frozen=True, slots=True)
class Bar:
    """A batch (or sample) that a worker made, or several merged into one. Seconds from the start.

    share: of a merged bar, the part of its time in which the worker was busy; otherwise 1.
    """

    row: int
    start: float
    fetch: float
    collate: float
    pack: float
    name: str
    samples: int
    slow: str = ""
    slow_seconds: float = 0.0
    share: float = 1.0
    copy: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, one line for each name."""

    title: str
    unit: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One loader over time. slow: the slowest samples as (name, seconds, worker, file)."""

    rows: tuple[str, ...]
    span: float
    bars: tuple[Bar, ...] = ()
    waits: tuple[tuple[float, float], ...] = ()
    series: tuple[Series, ...] = ()
    slow: tuple[tuple[str, float, str, str], ...] = ()
    note: str = ""


def run_timeline(run: LoaderRun) -> Timeline | None:
    """Return the timeline of a loader of `unjam run`."""
    times = [t for wait in run.waits for t in (wait.asked, wait.got)]
    times += [t for made in run.made for t in (made.begun, made.done)]
    times += [t for copy in run.copies for t in (copy.begun, copy.done)]
    if not times:
        return None
    start, end = min(times), max(times)
    workers = sorted({one.worker for one in run.made})
    row_of = {worker: row for row, worker in enumerate(workers)}
    bars = [
        Bar(
            row_of[one.worker],
            (one.begun - start) / 1e9,
            (one.collated - one.begun) / 1e9,
            ((one.packed or one.done) - one.collated) / 1e9,
            (one.done - one.packed) / 1e9 if one.packed else 0.0,
            one.name or "a batch",
            one.samples,
            one.slowest,
            one.longest / 1e9,
        )
        for one in run.made
    ]
    rows = [*map(_row_name, workers)]
    if run.copies:
        bars += [_copy(one, len(rows), start) for one in run.copies]
        rows.append("to device")
    waits = [((wait.asked - start) / 1e9, wait.seconds) for wait in run.waits]
    span = (end - start) / 1e9
    got = [(wait.got - start) / 1e9 for wait in run.waits]
    per_batch = run.samples / run.batches if run.batches else 1.0
    series = [
        Series("Throughput", "samples/s", {"samples/s": rate_over_time([(at, per_batch) for at in got], span)}),
        Series("Waiting for data", "% of the time", {"training": waiting_over_time(waits, span)}),
    ]
    if not run.cut and run.made and run.workers:
        done = [((one.done - start) / 1e9, 1) for one in run.made] + [(at, -1) for at in got]
        series.append(Series("Batches loaded and not yet used", "batches", {"batches": running_total(done, span)}))
    if run.copies:
        sent = [((one.done - start) / 1e9, one.nbytes / 1e9) for one in run.copies]
        series.append(Series("Copied to the device", "GB/s", {"GB/s": rate_over_time(sent, span)}))
    memory = [((at - start) / 1e9, worker, nbytes) for at, worker, nbytes in run.memory]
    slow = _slow_samples(bars, rows, run.files)
    note = "the oldest batches were dropped" if run.cut else ""
    return _timeline([*rows, "training"], span, bars, waits, series, memory, slow, note)


def _copy(one: TimedCopy, row: int, start: int) -> Bar:
    seconds = (one.done - one.begun) / 1e9
    speed = f" at {one.nbytes / seconds / 1e9:.1f} GB/s" if seconds else ""
    name = f"{one.nbytes / 1e6:,.1f} MB{speed}"
    return Bar(row, (one.begun - start) / 1e9, 0.0, 0.0, 0.0, name, 0, copy=seconds)


def trial_timeline(trial: Trial) -> Timeline | None:
    """Return the timeline of a trial of `unjam check`, with a bar for each sample."""
    samples = [one for one in trial.samples if one.at]
    if not samples:
        return None
    start = min(one.at - one.seconds for one in samples)
    end = max([one.at for one in samples] + [batch.at for batch in trial.batches])
    span = max(end - start, 1e-6)
    workers = sorted({one.worker for one in samples})
    bars = [
        Bar(workers.index(one.worker), one.at - one.seconds - start, one.seconds, 0.0, 0.0, f"sample {one.index}", 1)
        for one in samples
    ]
    waits = [(batch.at - batch.wait - start, batch.wait) for batch in trial.batches]
    each = len(samples) / max(1, len(trial.batches))
    series = [
        Series(
            "Throughput",
            "samples/s",
            {"samples/s": rate_over_time([(b.at - start, each) for b in trial.batches], span)},
        ),
        Series("Waiting for data", "% of the time", {"consumer": waiting_over_time(waits, span)}),
    ]
    memory = [(reading.at - start, reading.worker, reading.private) for reading in trial.memory]
    slow = [(one.index, one.seconds, _row_name(one.worker), one.file) for one in samples]
    return _timeline([*map(_row_name, workers), "consumer"], span, bars, waits, series, memory, slow)


def _timeline(
    rows: list[str],
    span: float,
    bars: list[Bar],
    waits: list[tuple[float, float]],
    series: list[Series],
    memory: list[tuple[float, int, int]],
    slow: list[tuple[str, float, str, str]],
    note: str = "",
) -> Timeline:
    """A timeline with its bars merged and its lines thinned out. memory: seconds, worker and bytes of each reading."""
    by_worker: dict[str, list[tuple[float, float]]] = {}
    for at, worker, nbytes in memory:
        by_worker.setdefault(_row_name(worker), []).append((at, nbytes / 1e6))
    lines = {name: thin_out(line) for name, line in by_worker.items()}
    series = [*series, Series("Private memory per worker", "MB", lines)]
    return Timeline(
        tuple(rows),
        span,
        tuple(merge_bars(bars, 1 + max((bar.row for bar in bars), default=-1), span)),
        tuple(longest_waits(waits)),
        tuple(one for one in series if any(len(line) > 1 for line in one.lines.values())),
        tuple(_slowest(slow)),
        note,
    )


def measurement_timeline(one: Measurement) -> Timeline | None:
    """Return the timeline of a setting of `unjam tune`."""
    if not one.timeline:
        return None
    start = min(bar[1] for bar in one.timeline)
    span = (max(bar[3] for bar in one.timeline) - start) / 1e9
    workers = sorted({int(bar[0]) for bar in one.timeline})
    bars = [
        Bar(
            workers.index(int(pid)),
            (begun - start) / 1e9,
            (collated - begun) / 1e9,
            (done - collated) / 1e9,
            0.0,
            str(name),
            int(samples),
            str(slow),
            float(took) / 1e9,
        )
        for pid, begun, collated, done, samples, slow, took, name in one.timeline
    ]
    rows = [f"worker {row}" if pid else "main" for row, pid in enumerate(workers)]
    done = sorted((bar.start + bar.fetch + bar.collate, float(bar.samples)) for bar in bars)
    series = [Series("Samples made", "samples/s", {"samples/s": rate_over_time(done, span)})]
    return _timeline(rows, span, bars, [], series, [], _slow_samples(bars, rows, one.files))


def _slow_samples(
    bars: Iterable[Bar], rows: Sequence[str], files: Mapping[str, str]
) -> list[tuple[str, float, str, str]]:
    return [(bar.slow, bar.slow_seconds, rows[bar.row], files.get(bar.slow, "")) for bar in bars if bar.slow]


# -- merging ---------------------------------------------------------------------------------------


def merge_bars(bars: list[Bar], rows: int, span: float) -> list[Bar]:
    """Merge the bars into time slices if there are too many for a page."""
    if len(bars) <= MOST_BARS or not rows:
        return bars
    slices = max(50, MOST_BARS // rows)
    wide = span / slices
    found: dict[tuple[int, int], list[Bar]] = {}
    for bar in bars:
        found.setdefault((bar.row, min(slices - 1, int(bar.start / wide))), []).append(bar)
    merged = []
    for (row, at), group in sorted(found.items()):
        spent = sum(bar.fetch + bar.collate + bar.pack + bar.copy for bar in group)
        worst = max(group, key=lambda bar: bar.slow_seconds)
        slow, seconds = worst.slow, worst.slow_seconds
        samples = sum(bar.samples for bar in group)
        name = f"{len(group)} batches"
        merged.append(Bar(row, at * wide, wide, 0.0, 0.0, name, samples, slow, seconds, min(1.0, spent / wide)))
    return merged


def longest_waits(waits: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the longest waits, in time order."""
    kept = sorted(waits, key=lambda wait: -wait[1])[:MOST_WAITS]
    return sorted(kept)


def rate_over_time(events: Iterable[tuple[float, float]], span: float) -> list[tuple[float, float]]:
    """Return the amount per second, by time slice."""
    events = list(events)
    slices = max(1, min(POINTS, len(events) // 3))
    wide = max(span, 1e-9) / slices
    counted = [0.0] * slices
    for at, amount in events:
        counted[min(slices - 1, max(0, int(at / wide)))] += amount
    return [((at + 0.5) * wide, amount / wide) for at, amount in enumerate(counted)]


def waiting_over_time(waits: list[tuple[float, float]], span: float) -> list[tuple[float, float]]:
    """Return the percentage of each time slice that was spent waiting."""
    slices = max(1, min(POINTS, len(waits) // 2))
    wide = max(span, 1e-9) / slices
    counted = [0.0] * slices
    for begin, seconds in waits:
        first, last = max(0, int(begin / wide)), min(slices - 1, int((begin + seconds) / wide))
        for at in range(first, last + 1):
            counted[at] += max(0.0, min((at + 1) * wide, begin + seconds) - max(at * wide, begin))
    return [((at + 0.5) * wide, min(100.0, spent / wide * 100)) for at, spent in enumerate(counted)]


def running_total(changes: list[tuple[float, int]], span: float) -> list[tuple[float, float]]:
    """Return the running sum of the changes at regular points in time."""
    changes = sorted(changes)
    found, now, at = [], 0, 0
    for point in range(POINTS):
        until = (point + 1) * span / POINTS
        while at < len(changes) and changes[at][0] <= until:
            now += changes[at][1]
            at += 1
        found.append((until, float(max(0, now))))
    return found


def thin_out(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reduce a line to a few hundred points, including the last one."""
    step = max(1, len(line) // POINTS)
    return [*line[::step], *line[-1:]] if step > 1 else line


def _slowest(samples: list[tuple[str, float, str, str]]) -> list[tuple[str, float, str, str]]:
    return sorted(samples, key=lambda one: -one[1])[:MOST_SLOW]


def _row_name(worker: int) -> str:
    return "main" if worker < 0 else f"worker {worker}"
