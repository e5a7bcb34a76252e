"""What a loader has done so far, as frozen objects that print well in a terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from unjam.units import count, duration, near, size


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long one stage took, in seconds. Percentiles come from a histogram, exact to 5 %.

    slowest: the sample (or batch) that took `longest`, as text.
    spread: a histogram as (seconds, count) pairs. Each step ends at `seconds` and is twice as wide
        as the step before; empty steps are left out.
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
    """One of the slowest samples.

    index: the sampler's index, as text; "batch 7" if the dataset loaded that batch in one call.
    """

    index: str
    seconds: float
    batch: int
    stage: str = "getitem"


@dataclass(frozen=True, slots=True)
class Stalls:
    """The cost of slow samples: how many batches they delayed, and how long the consumer waited.

    slow: a sample counts as slow above this many seconds: ten times the median, at least 2 ms.
    """

    batches: int = 0
    seconds: float = 0.0
    slow: float = 0.0


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line of user code that takes time, found by sampling the stacks of working workers.

    looks: how many stacks were at this line. share: their part of all the stacks.
    text: the source line. inside: the innermost call seen most often, if not the line itself.
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
    """The time of one transform.

    path: where the dataset holds it. count: how often it was called. total: seconds in all.
    own: seconds without the transforms that it calls.
    """

    path: str
    name: str
    count: int
    total: float
    own: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What `profile=True` measured. `looks`: how many stacks of working workers were sampled."""

    looks: int = 0
    lines: tuple[LineTime, ...] = ()
    transforms: tuple[TransformTime, ...] = ()

    def __str__(self) -> str:
        rows = []
        whole = sum(one.own for one in self.transforms)
        if self.transforms:
            rows.append("  transforms, by the time spent in each itself:")
            rows += [
                f"    {one.own / whole if whole else 0:>4.0%} {duration(one.own / one.count):>9} each  {one.name:<24} {one.path}"
                for one in self.transforms[:10]
            ]
        if self.lines:
            rows.append(f"  lines, from {self.looks} stack samples of busy workers:")
            for one in self.lines[:8]:
                inside = f"  in {one.inside}" if one.inside else ""
                stage = "" if one.stage == "getitem" else f"  ({one.stage})"
                rows.append(
                    f"    {one.share:>4.0%} {near(one.file)}:{one.line} {one.function}: {one.text}{inside}{stage}"
                )
        return "\n".join(rows) or "  no profile yet"


@dataclass(frozen=True, slots=True)
class AutoStep:
    """One setting that `num_workers="auto"` tried.

    batches: how many batches had been delivered by then. workers, prefetch: the setting.
    rate: samples per second. waited: the share of the time that the consumer waited.
    verdict: "first", "kept" or "undone".
    """

    batches: int
    workers: int
    prefetch: int
    rate: float
    waited: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Auto:
    """What `num_workers="auto"` chose, and why.

    most: how many workers the machine allows. settled: whether the search is over.
    steps: the settings that were tried.
    """

    workers: int
    prefetch: int
    most: int
    settled: bool
    why: str
    steps: tuple[AutoStep, ...] = ()

    def __str__(self) -> str:
        state = "" if self.settled else ", still searching"
        lines = [
            f"  auto: {count(self.workers, 'worker')} (at most {self.most}), prefetch {self.prefetch}{state}: {self.why}"
        ]
        lines += [
            f"    after {step.batches:>5} batches: {step.workers:>2} workers, prefetch {step.prefetch:>2}: "
            f"{step.rate:>9,.0f} samples/s, waited {step.waited:>4.0%}, {step.verdict}"
            for step in self.steps[-8:]
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Copies:
    """Batches that `device=` sent to an accelerator.

    seconds: how long the device worked on them. waited: how long the training's stream waited for them.
    ready: batches that were on the device when they were requested.
    direct: the share of the bytes that the device read from the workers' memory, without a copy on the host.
    """

    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    ready: int = 0
    direct: float = 0.0

    def __str__(self) -> str:
        rate = self.bytes / self.seconds / 1e9 if self.seconds else 0.0
        return (
            f"  device: {self.batches:,} batches, {self.bytes / 1e9:.2f} GB at {rate:.1f} GB/s, {self.direct:.0%} without a copy on "
            f"the host; {self.ready:,} were ready when requested, training waited {duration(self.waited)}"
        )


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node of a cluster did; "here" is this machine.

    workers: how many it has now. seconds: how long they worked on these batches. bytes: what came over the network.
    """

    workers: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Totals since the loader was made.

    failed: samples that raised an exception, whether it was handled or not.
    skipped, replaced, retried: how failed samples were handled.
    restarts: workers that replaced a dead worker.
    starting: seconds that unjam itself needed to start workers: to send the dataset, to start the
        fork server, to import.
    waited: the time that the consumer spent waiting for batches.
    slowest: the slowest samples, the slowest one first. stalls: the cost of slow samples.
    incidents: how often something went wrong, by kind.
    bytes: the memory that the delivered batches took.
    arena_bytes: the size of the workers' recycled memory now.
    arena_held: the part of it that belongs to batches which the consumer still holds.
    auto: what `num_workers="auto"` chose. profile: what `profile=True` measured.
    copies: what `device=` sent to an accelerator.
    nodes: with workers on a cluster, what each node did. does_not_pay: why workers on this machine would be faster; empty: they would not.
    reread_samples: samples of streams that were read again to resume at the same position.
    reread_seconds: how many seconds this took, summed over all workers.
    rebuilt: why each worker rebuilds the dataset itself. Empty: the dataset is rebuilt once and
        workers are forked from that process, or the fork server starts no workers.
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
    copies: Copies | None = None
    nodes: dict[str, NodeShare] = field(default_factory=dict)
    does_not_pay: str = ""
    reread_samples: int = 0
    reread_seconds: float = 0.0
    rebuilt: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"samples {self.samples}, batches {self.batches}, epochs {self.epochs}, {size(self.bytes)}; workers {self.workers}",
            f"  failed {self.failed}: {self.skipped} skipped, {self.replaced} replaced, {self.retried} succeeded on retry",
            f"  workers restarted {self.restarts}",
            f"  {'':<8} {'p50':>9} {'p95':>9} {'p99':>9} {'longest':>9}   slowest sample or batch",
        ]
        rows = {**self.stages, "waited": self.waited}
        for name, times in rows.items():
            if times.count:
                lines.append(
                    f"  {name:<8} {duration(times.p50):>9} {duration(times.p95):>9} {duration(times.p99):>9}"
                    f" {duration(times.longest):>9}"
                    f"   {times.slowest}".rstrip()
                )
        lines.append(
            f"  waited {duration(self.waited.total)} in total; recycled memory {size(self.arena_bytes)}, "
            f"{size(self.arena_held)} of it in use by batches"
        )
        if self.stalls.batches:
            named = ", ".join(f"{one.index} ({duration(one.seconds)})" for one in self.slowest[:3])
            lines.append(
                f"  training waited {duration(self.stalls.seconds)} in total for {count(self.stalls.batches, 'batch', 'batches')} with samples that took more than "
                f"{duration(self.stalls.slow)}; the slowest: {named}"
            )
        if self.incidents:
            lines.append(
                "  incidents: " + ", ".join(f"{kind} {number}" for kind, number in sorted(self.incidents.items()))
            )
        for name, one in self.nodes.items():
            lines.append(
                f"  node {name}: {count(one.workers, 'worker')}, {count(one.batches, 'batch', 'batches')}, {size(one.bytes)} over the network, "
                f"{duration(one.seconds)} of work"
            )
        if self.does_not_pay:
            lines.append(f"  workers on the cluster do not pay off: {self.does_not_pay}")
        lines += [str(one) for one in (self.auto, self.copies, self.profile) if one is not None]
        if self.rebuilt:
            lines.append(f"  each worker rebuilds the dataset: {self.rebuilt}")
        return "\n".join(lines)
