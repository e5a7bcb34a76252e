"""What of the dataset exists once for all workers, and what does not.

What happened: nothing is wrong. The dataset holds large lists, dicts or tuples, and unjam's loader keeps those of plain values once in shared
memory (`share_dataset`); the others, if there are any, are in every worker.

Why: a copy of a million small objects in each worker is what fills memory.

How to confirm: `loader.statistics().sharing`, after an epoch.

How to fix: what is left alone can be shared by hand: `unjam.SharedList` and `SharedDict` take anything that can be pickled.

Limits: the first items are looked at here; in the loader itself all of them, and a dry run decides whether workers only read them.
"""

from __future__ import annotations

from typing import Any

from unjam.evidence.case import Case
from unjam.rules.judging import LIKELY, quoted, size
from unjam.rules.rule import Finding, Rule, Severity

RULE = Rule("UJ410", "one-copy-for-all-workers", Severity.NOTE)
# as in the loader: smaller ones are not worth it
LARGE = 16 << 20


def detect(case: Case) -> Finding | None:
    """Large containers in the dataset of one of unjam's loaders."""
    loader = case.loader
    crowds = [part for part in case.kinds("objects") if part.facts["nbytes"] >= LARGE]
    if not loader.shares or not loader.num_workers or not crowds:
        return None
    shared = [part for part in crowds if not part.facts.get("left_alone")]
    left = [part for part in crowds if part.facts.get("left_alone")]
    saved = sum(part.facts["nbytes"] for part in shared) * loader.num_workers
    first = (shared or left)[0]
    summary = (
        f"{', '.join(part.path for part in shared)}: one copy for all workers saves up to {size(saved)}"
        if shared
        else ""
    )
    apart = f"{', '.join(part.path for part in left)}: in every worker" if left else ""
    return Finding(
        RULE,
        "; ".join(part for part in (summary, apart) if part),
        first.path,
        (
            *(
                f"shared: {part.path}, {part.facts['count']:,} items, about {size(part.facts['nbytes'])}"
                for part in shared
            ),
            *(
                f"left alone: {part.path}, {part.facts['count']:,} items, about {size(part.facts['nbytes'])}: {part.facts['left_alone']}"
                for part in left
            ),
            *((f"set at {quoted(first.place)}",) if first.place else ()),
        ),
        LIKELY,
        "nothing to do"
        if not left
        else f"unjam.SharedList or SharedDict in place of {left[0].path} takes anything that can be pickled",
        first.place,
    )


def broken(DataLoader: Any) -> None:
    """A large list in the dataset of unjam's loader."""
    import unjam
    from unjam.rules.programs import Scaled

    data = Scaled(abs)
    data.names = [f"images/{number:012d}.jpg" for number in range(400_000)]  # type: ignore[attr-defined]
    for _ in unjam.DataLoader(data, batch_size=4, num_workers=1):
        pass


def fixed(DataLoader: Any) -> None:
    """A small one."""
    import unjam
    from unjam.rules.programs import Scaled

    data = Scaled(abs)
    data.names = [f"images/{number:012d}.jpg" for number in range(400)]  # type: ignore[attr-defined]
    for _ in unjam.DataLoader(data, batch_size=4, num_workers=1):
        pass
