"""Reading the dataset's Python objects copies them into every worker.

What happened: after the fork the workers share the program's memory. But reading a Python object
changes its reference count, which is stored next to it, so the system copies the page. During the
epoch every worker gets its own copy of the dataset's objects.

Why: lists and dicts of strings, tuples or dicts are millions of small objects. Reading one large
array or buffer does not change its memory.

How to confirm: the workers' private memory grows with the samples; with the same items in one
shared buffer it does not.

How to fix: `self.items = unjam.SharedList(items)` (`SharedDict`, `SharedArray`) keeps one copy in
shared memory, for any loader. The workers of unjam's own DataLoader read plain values (strings,
numbers, lists, dicts, tuples) without copying them, on Python 3.12 and later. Otherwise use one
numpy array, or a mapped file.

Limits: the growth over a whole epoch is extrapolated from the samples that were loaded.
"""

from __future__ import annotations

import re

from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.source import line_of
from unjam.doctor.facts.trial import Trial
from unjam.doctor.proof import Severity, Toggle
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import size

RULE = Rule("UJ404", "objects-copied-on-read", Severity.WARNING, symptom="memory")
# growth of all workers together below this many bytes is not reported
WORTH = 16 << 20


def detect(case: Case) -> Finding | None:
    """Find growing workers, and the large container of objects that explains the growth."""
    container = max(case.kinds("objects"), key=lambda part: part.state.nbytes, default=None)
    as_is = case.as_is
    if container is None or not case.forked or as_is is None:
        return None
    left = container.state.why_not_shared
    version = tuple(map(int, case.process_facts.python.split(".")[:2]))
    if case.loader.driver == "unjam" and not left and version >= (3, 12):
        return None  # unjam's workers read it without copying it
    each = growth(as_is)
    workers = case.loader.num_workers
    length = case.loader.length or container.state.count
    total = min(each * length / workers, container.state.nbytes * 1.3) * workers
    if total < WORTH or each <= 0:
        return None
    packed = as_is.plan.changed(pack=(container.path,))
    trial = case.tried(packed)
    if trial is not None and trial.fine and growth(trial) >= each * 0.4:
        return None
    return Finding(
        RULE,
        f"reading {container.path} ({container.state.count:,} Python objects) copies it into every worker: about {size(total)} in an epoch",
        container.path,
        (
            f"the workers' private memory grows by {size(each * 1000)} for every 1,000 samples",
            f"{container.path} holds about {size(container.state.nbytes)} of objects; with {workers} workers up to {size(total)} more",
            *line_evidence("set at", container.place),
            f"the workers of unjam.DataLoader would copy it too: {left}"
            if left
            else f"on Python 3.12 and later the workers of unjam.DataLoader read it without copying, which saves up to {size(total)}",
        ),
        Toggle(as_is.plan, (packed,), lambda base, changed: growth(changed) < growth(base) * 0.4),
        f"keep one copy of {container.path} in shared memory: {_target(container)} = unjam.{_kind(container)}({_target(container)})"
        + ("" if left else "; or use unjam's DataLoader on Python 3.12 or later"),
        container.place,
        _diff(container),
    )


def _kind(container: Part) -> str:
    return "SharedDict" if container.type_name == "dict" else "SharedList"


def _target(container: Part) -> str:
    """Return the program's own name for the container, or its path if the line shows none."""
    name, equals, _ = line_of(container.place).partition(" = ")
    return (equals and name.strip()) or container.path


def _diff(container: Part) -> str:
    """Return the line that creates the container, and the line to add after it."""
    line, target = line_of(container.place), _target(container)
    if not re.fullmatch(r"\w+(\.\w+)+", target) or target == container.path:
        return ""
    return f"     {line}\n+    {target} = unjam.{_kind(container)}({target})"


def growth(trial: Trial) -> float:
    """Return the mean growth of a worker's private memory in bytes per sample."""
    slopes = []
    for worker in {m.worker for m in trial.memory}:
        of_worker = [m for m in trial.memory if m.worker == worker]
        # the last process with this number only: the sample number of a restarted worker starts again
        restarts = [place for place, m in enumerate(of_worker) if place and m.samples <= of_worker[place - 1].samples]
        run = max((of_worker[a:b] for a, b in zip([0, *restarts], [*restarts, len(of_worker)], strict=True)), key=len)
        # from the second measurement on: between the first two a worker copies the pages that every process writes once
        # (70 MB on Python 3.12), however few samples it loads
        run = run[1:]
        if len(run) >= 2 and run[-1].samples > run[0].samples:
            slopes.append((run[-1].private - run[0].private) / (run[-1].samples - run[0].samples))
    return max(0.0, sum(slopes) / len(slopes)) if slopes else 0.0
