"""The dataset's Python objects are copied into every worker as they are read.

What happened: after the fork the workers share the program's memory, but reading a Python object changes its reference count, which lies
beside it: the system then copies the page. As the epoch goes on every worker gets its own copy of the dataset's objects.

Why: lists and dicts of strings, tuples or dicts are millions of small objects. One large array or buffer is not touched by reading it.

How to confirm: the workers' own memory grows with the samples; with the same items in one shared buffer it does not.

How to fix: `self.items = unjam.SharedList(items)` (`SharedDict`, `SharedArray`) keeps them once in shared memory, for any loader. The workers of unjam's own
DataLoader read plain values (strings, numbers, lists, dicts, tuples) without copying them, on Python 3.12 and later. Otherwise one numpy array, or a
file that is mapped.

Limits: the growth over a whole epoch is extrapolated from the samples that were loaded.
"""

from __future__ import annotations

import re
from typing import Any

from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.source import line_of
from unjam.doctor.facts.trial import Trial
from unjam.doctor.rules.judging import LIKELY, PROVEN, quoted, size
from unjam.doctor.rules.rule import Finding, Rule, Severity

RULE = Rule("UJ404", "objects-copied-on-read", Severity.WARNING, symptom="memory")
# less than this in all workers together is not worth a word
WORTH = 32 << 20


def detect(case: Case) -> Finding | None:
    """Growing workers, and a crowd of objects to blame."""
    crowd = max(case.kinds("objects"), key=lambda part: part.facts["nbytes"], default=None)
    as_is = case.as_is
    if crowd is None or not case.forked or as_is is None:
        return None
    left = crowd.facts.get("left_alone", "")
    if case.loader.driver == "unjam" and not left and _version(case.world.python) >= (3, 12):
        return None  # its workers read it without copying it
    each = growth(as_is)
    workers = case.loader.num_workers
    length = case.loader.length or crowd.facts["count"]
    total = min(each * length / workers, crowd.facts["nbytes"] * 1.3) * workers
    if total < WORTH or each <= 0:
        return None
    packed = as_is.plan.changed(pack=(crowd.path,))
    trial = case.tried(packed)
    gone = trial is not None and trial.fine and growth(trial) < each * 0.4
    if trial is not None and trial.fine and not gone:
        return None
    return Finding(
        RULE,
        f"{crowd.path} ({crowd.facts['count']:,} Python objects) is copied into every worker as it is read: about "
        f"{size(total)} in an epoch",
        crowd.path,
        (
            f"the workers' own memory grows by {size(each * 1000)} for every 1,000 samples",
            f"{crowd.path} holds about {size(crowd.facts['nbytes'])} of objects; with {workers} workers up to {size(total)} more",
            *((f"set at {quoted(crowd.place)}",) if crowd.place else ()),
            *((f"{trial.plan}: {size(growth(trial) * 1000)} for every 1,000 samples",) if gone and trial else ()),
            f"the workers of unjam.DataLoader would copy it too: {left}"
            if left
            else f"on Python 3.12 and later the workers of unjam.DataLoader read it without copying it, and save up to {size(total)}",
        ),
        PROVEN if gone else LIKELY,
        f"keep {crowd.path} once in shared memory: {_target(crowd)} = unjam.{_kind(crowd)}({_target(crowd)})"
        + ("" if left else "; or use unjam's DataLoader on Python 3.12 or later"),
        crowd.place,
        _diff(crowd),
        wants=(packed,),
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


def _kind(crowd: Part) -> str:
    return "SharedDict" if crowd.type_name == "dict" else "SharedList"


def _target(crowd: Part) -> str:
    """What the program itself calls it, where that can be read."""
    return (
        line_of(crowd.place).partition(" = ")[0].strip() or crowd.path if " = " in line_of(crowd.place) else crowd.path
    )


def _diff(crowd: Part) -> str:
    """The line that makes it, and the line that should follow."""
    line, target = line_of(crowd.place), _target(crowd)
    if not re.fullmatch(r"\w+(\.\w+)+", target) or target == crowd.path:
        return ""
    return f"     {line}\n+    {target} = unjam.{_kind(crowd)}({target})"


def growth(trial: Trial) -> float:
    """Bytes by which a worker's own memory grows for each sample, once it has warmed up."""
    slopes = []
    for worker in {m.worker for m in trial.memory}:
        mine = [m for m in trial.memory if m.worker == worker]
        # one process's life only: numbers of samples that grow
        run = [m for place, m in enumerate(mine) if place == 0 or m.samples > mine[place - 1].samples]
        if len(run) >= 2 and run[-1].samples > run[0].samples:
            slopes.append((run[-1].private - run[0].private) / (run[-1].samples - run[0].samples))
    return max(0.0, sum(slopes) / len(slopes)) if slopes else 0.0


def broken(DataLoader: Any) -> None:
    """Half a million strings in a list."""
    from torch.utils.data import Dataset

    class Paths(Dataset[Any]):
        def __init__(self) -> None:
            self.paths = [f"images/{number:012d}.jpg" for number in range(500_000)]

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> int:
            return len(self.paths[index])

    for _ in DataLoader(Paths(), batch_size=256, shuffle=True, num_workers=2):
        pass


def fixed(DataLoader: Any) -> None:
    """The same in shared memory."""
    from torch.utils.data import Dataset

    import unjam

    class Paths(Dataset[Any]):
        def __init__(self) -> None:
            self.paths = unjam.SharedList(f"images/{number:012d}.jpg" for number in range(500_000))

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, index: int) -> int:
            return len(self.paths[index])

    for _ in DataLoader(Paths(), batch_size=256, shuffle=True, num_workers=2):
        pass
