"""A few samples are far slower than the rest.

What happened: some samples take many times as long as the others. The loader delivers in order, so
all later samples wait for them.

Why: a huge file among small ones, a download among cached files, a retry, an input that makes a
search long.

How to confirm: the named samples are slow again, with workers and without.

How to fix: make those samples cheaper: shrink them beforehand, cache them, or leave them out. A
larger `prefetch_factor` lets the workers run ahead of one slow sample.

Limits: only samples that the doctor had time to load are known.
"""

from __future__ import annotations

import statistics
from collections import Counter

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration, with_file

RULE = Rule("UJ603", "slow-samples", Severity.WARNING)


def detect(case: Case) -> Finding | None:
    """Find samples that take far longer than the others."""
    alone = case.alone
    samples = list(alone.samples) if alone else []
    if len(samples) < 12:
        return None
    usual = statistics.median(s.seconds for s in samples)
    slow = sorted((s for s in samples if s.seconds > max(0.25, usual * 20)), key=lambda s: -s.seconds)
    spent, rest = sum(s.seconds for s in slow), sum(s.seconds for s in samples)
    # the first sample of a process often pays for imports and caches
    slow = [s for s in slow if s is not samples[0]]
    # a sample that fills a cache is slow only once: loaded a second time it is fast
    second = alone.second_seconds if alone else {}
    slow = [s for s in slow if second.get(s.index, s.seconds) > 0.3 * s.seconds]
    if sum(s.index in second for s in slow) < min(len(slow), 1):
        return None
    if not slow or len(slow) > len(samples) * 0.1 or spent < rest * 0.15:
        return None
    trial = case.compared
    again = {s.index for s in trial.samples if s.seconds > slow[-1].seconds * 0.5} if trial else set()
    both = [s for s in slow if s.index in again]
    if trial is not None and trial.fine and not both and all(s.index in {t.index for t in trial.samples} for s in slow):
        return None  # slow only once, so not because of the sample
    return Finding(
        RULE,
        f"{count(len(slow), 'sample')} of {len(samples)} {'takes' if len(slow) == 1 else 'take'} {spent / rest:.0%} of the time: "
        f"the slowest takes {duration(slow[0].seconds)}, the median is {duration(usual)}",
        f"sample {names(s.index for s in slow)}",
        (
            "slowest: " + "; ".join(f"{with_file(s.index, s.file)} ({duration(s.seconds)})" for s in slow[:5]),
            f"median: {duration(usual)}",
            "slow again in workers" if both else "",
        ),
        OBSERVED if both else AGREES,
        f"check sample {names(s.index for s in slow)}: shrink, cache or leave out what makes it slow",
        case.loader.dataset_place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a training loop that waits for slow workers, and the line that takes most of the time."""
    for main in scene.mains:
        working = [
            one
            for one in (main, *scene.workers(main))
            if one.activity.stage in ("sample", "collate", "task", "init", "made")
        ]
        waits = main.activity.stage == "waits" or main in working
        if not waits or not working or scenes.blocked_processes(scene) or any(one.ended for one in scene.workers(main)):
            continue
        lines: Counter[str] = Counter()
        for one in working:
            lines.update({where: times for where, times in one.thread.lines.items() if where})
        if not lines:
            continue
        where, times = lines.most_common(1)[0]
        file, _, line = where.rpartition(":")
        place = Place(file, int(line))
        busy = sum(one.thread.busy for one in working) / len(working)
        return Finding(
            RULE,
            f"not frozen: {main.name} waits for data, and most of the time is spent at {place}",
            f"{place}",
            (
                f"{times} of {sum(lines.values())} stack samples are at {quoted(place)}",
                f"{count(len(working), 'process', 'processes')} loading, each using {busy:.0%} of a processor"
                + ("; they wait more than they compute: more workers would help" if busy < 0.3 else ""),
                *scenes.silence_words(main),
            ),
            AGREES,
            f"make {place} cheaper, or use more workers; `unjam check` measures which helps",
            place,
            severity=Severity.NOTE,
        )
    return None
