"""Persistent workers do not see what the program changes.

What happened: the program changes the dataset between epochs (an epoch's number, a difficulty, a
list), but with `persistent_workers=True` the workers keep the copy that they got at the start.

Why: every worker works on a copy of the dataset; only new workers get a new copy.

How to confirm: print the attribute in `__getitem__` in the second epoch.

How to fix: use `persistent_workers=False`; or keep the value in shared memory
(`torch.tensor(0).share_memory_()`, `multiprocessing.Value`); or pass it through the sampler with
the index.

Limits: found by reading the loop; the dataset's code tells whether samples depend on the attribute.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.rules.judging import LIKELY, quoted
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ516", "persistent-workers-keep-old-state")


def detect(case: Case) -> Finding | None:
    """Find an attribute of the dataset that the loop sets while the workers persist."""
    if not case.loader.persistent_workers or not case.loader.num_workers or not case.reading.writes:
        return None
    name, place = next(iter(case.reading.writes.items()))
    return Finding(
        RULE,
        f"the loop sets dataset.{name}, and persistent workers keep the value they were started with",
        f"dataset.{name}",
        (f"set in the loop at {quoted(place)}", "persistent_workers=True: workers get the dataset once"),
        LIKELY,
        f"persistent_workers=False, or keep {name} in shared memory (torch.tensor(0).share_memory_())",
        place,
    )


def broken(DataLoader: Any) -> None:
    """Raise the difficulty in the loop."""
    from torch.utils.data import Dataset

    class Course(Dataset[Any]):
        level = 0

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            return index + self.level

    dataset = Course()
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        dataset.level = epoch
        for _ in loader:
            pass


def fixed(DataLoader: Any) -> None:
    """Use new workers for each epoch."""
    from torch.utils.data import Dataset

    class Course(Dataset[Any]):
        level = 0

        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            return index + self.level

    dataset = Course()
    loader = DataLoader(dataset, batch_size=4, num_workers=1)
    for epoch in range(2):
        dataset.level = epoch
        for _ in loader:
            pass
