"""What a loader has done: a frozen object, readable in a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long one stage took, in seconds. Percentiles come from a histogram and are right to 5 %.

    slowest: the sample (or batch) that took `longest`, in words. spread: how many took up to how long, in steps of a factor of
    two: (seconds, count) for every step that is not empty.
    """

    count: int = 0
    total: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    slowest: str = ""
    spread: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples. `index`: as the sampler gave it, in words; "batch 7" where samples came all at once."""

    index: str
    seconds: float
    batch: int
    stage: str = "getitem"


@dataclass(frozen=True, slots=True)
class Stalls:
    """What slow samples cost: how many batches waited for one, and how long the consumer stood still for them.

    slow: seconds from which a sample counts as slow, ten times what half of the samples take.
    """

    batches: int = 0
    seconds: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line of the user's on which samples spend time: the share of all looks at working workers that found one there.

    inside: the call that was innermost most often, where that is not the line itself.
    """

    file: str
    line: int
    function: str
    stage: str
    looks: int
    share: float
    text: str = ""
    inside: str = ""


@dataclass(frozen=True, slots=True)
class TransformTime:
    """A transform: where the dataset holds it, how often it was called, seconds in all and without transforms inside of it."""

    path: str
    name: str
    count: int
    total: float
    own: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What `profile=True` saw."""

    looks: int = 0
    lines: tuple[LineTime, ...] = ()
    transforms: tuple[TransformTime, ...] = ()

    def __str__(self) -> str:
        rows = []
        whole = sum(one.own for one in self.transforms)
        if self.transforms:
            rows.append("  transforms, by their own time:")
            rows += [
                f"    {one.own / whole if whole else 0:>4.0%} {_seconds(one.own / one.count):>9} each  {one.name:<24} {one.path}"
                for one in self.transforms[:10]
            ]
        if self.lines:
            rows.append(f"  lines, in {self.looks} looks at working workers:")
            for one in self.lines[:8]:
                inside = f"  in {one.inside}" if one.inside else ""
                rows.append(f"    {one.share:>4.0%} {one.file}:{one.line} {one.function}: {one.text}{inside}")
        return "\n".join(rows) or "  no profile yet"


@dataclass(frozen=True, slots=True)
class AutoStep:
    """One experiment of `num_workers="auto"`: after how many batches, with what, and what became of it.

    rate: samples a second. waited: the part of the time in which the consumer waited. verdict: "first", "kept" or
    "taken back".
    """

    batches: int
    workers: int
    prefetch: int
    rate: float
    waited: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Auto:
    """What `num_workers="auto"` chose, and why. `most`: the workers that the machine allows."""

    workers: int
    prefetch: int
    most: int
    settled: bool
    why: str
    steps: tuple[AutoStep, ...] = ()

    def __str__(self) -> str:
        state = "" if self.settled else ", still trying"
        lines = [f"  auto: {self.workers} workers of at most {self.most}, prefetch {self.prefetch}{state}: {self.why}"]
        lines += [
            f"    after {step.batches:>5} batches: {step.workers:>2} workers, prefetch {step.prefetch:>2}: "
            f"{step.rate:>9,.0f} samples/s, waited {step.waited:>4.0%}, {step.verdict}"
            for step in self.steps[-8:]
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals since the loader was made.

    failed: samples that ended in an exception, however it was dealt with; `skipped`, `replaced`, `retried` say how.
    starting: seconds that unjam itself took to start workers: to send the dataset, to start the fork server, to import.
    waited: the time that the consumer spent waiting for batches.
    slowest: the slowest samples, the worst first. stalls: what slow samples cost.
    restarts: workers that took a dead one's place. incidents: everything that went wrong, by kind.
    auto: what `num_workers="auto"` chose. profile: what `profile=True` saw.
    rebuilt: why each worker rebuilds the dataset for itself; empty: it is rebuilt once, and workers are forked from there, or there
        are no workers of the fork server.
    bytes: what the delivered batches occupied in memory; arena_bytes and arena_held: what the workers' recycled memory
        spans now, and how much of it lies under batches that the consumer still holds.
    """

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    failed: int = 0
    skipped: int = 0
    replaced: int = 0
    retried: int = 0
    empty_batches: int = 0
    restarts: int = 0
    workers: int = 0
    starting: float = 0.0
    waited: StageTimes = field(default_factory=StageTimes)
    stages: dict[str, StageTimes] = field(default_factory=dict)
    slowest: tuple[SlowSample, ...] = ()
    stalls: Stalls = field(default_factory=Stalls)
    incidents: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    arena_bytes: int = 0
    arena_held: int = 0
    auto: Auto | None = None
    profile: Profile | None = None
    rebuilt: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        import dataclasses  # noqa: PLC0415 - only here

        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [
            f"samples {self.samples}, batches {self.batches}, epochs {self.epochs}, {_bytes(self.bytes)}; workers {self.workers}",
            f"  failed {self.failed}: {self.skipped} skipped, {self.replaced} replaced, {self.retried} cured by a retry",
            f"  workers restarted {self.restarts}",
            f"  {'':<8} {'p50':>9} {'p95':>9} {'p99':>9} {'longest':>9}   slowest",
        ]
        rows = {**self.stages, "waited": self.waited}
        for name, times in rows.items():
            if times.count:
                lines.append(
                    f"  {name:<8} {_seconds(times.p50):>9} {_seconds(times.p95):>9} {_seconds(times.p99):>9}"
                    f" {_seconds(times.longest):>9}"
                    f"   {times.slowest}".rstrip()
                )
        lines.append(
            f"  waited {_seconds(self.waited.total)} in all; recycled memory {_bytes(self.arena_bytes)}, "
            f"{_bytes(self.arena_held)} of it under batches in use"
        )
        if self.stalls.batches:
            named = ", ".join(f"{one.index} ({_seconds(one.seconds)})" for one in self.slowest[:3])
            lines.append(
                f"  {self.stalls.batches} batches waited {_seconds(self.stalls.seconds)} in all for a sample over "
                f"{_seconds(self.stalls.slow)}; the slowest: {named}"
            )
        if self.incidents:
            lines.append(
                "  incidents: " + ", ".join(f"{count} {kind}" for kind, count in sorted(self.incidents.items()))
            )
        lines += [str(one) for one in (self.auto, self.profile) if one is not None]
        if self.rebuilt:
            lines.append(f"  each worker rebuilds the dataset for itself: {self.rebuilt}")
        return "\n".join(lines)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.0f} ns"


def _bytes(value: int) -> str:
    size = float(value)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
