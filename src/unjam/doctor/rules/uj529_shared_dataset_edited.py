"""Setting something on one part of a split changes the other part.

What happened: the program sets an attribute through `part.dataset`, and the other part of the split
uses the same dataset object.

Why: `random_split` and `Subset` share the dataset. `val.dataset.transform = plain` also takes the
transform away from training.

How to confirm: `train.dataset is val.dataset`.

How to fix: make two datasets, one for each purpose, and use the same indices.

Limits: only assignments that stand in the program's own files are read.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import sets_through
from unjam.doctor.facts.watched import Watched
from unjam.doctor.mechanisms.passes import evaluators, shared, trainers
from unjam.doctor.proof import AGREES
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ529", "shared-dataset-edited")


def detect_program(watched: Watched, cases: list[Case]) -> list[Finding]:
    """Find an assignment through `.dataset` where two Subsets share the dataset."""
    del cases
    for other in evaluators(watched):
        for train in trainers(watched):
            if "base" not in shared(other, train) or not train.facts.get("subset") or not other.facts.get("subset"):
                continue
            files = {place.file for place in (other.made, other.place, train.made, train.place) if place is not None}
            for file in sorted(files):
                for place, text, name in sets_through(file, "dataset"):
                    read = any(path.endswith(f".{name}") for path in train.facts.get("reads", ()))
                    if not read:
                        continue
                    return [
                        Finding(
                            RULE,
                            f"{text} also changes the other part of the split: both use one {train.facts.get('base')} object",
                            text,
                            (
                                f"set at {quoted(place)}",
                                f"{train.name} and {other.name} are parts of the same object",
                                f"samples use {name}",
                            ),
                            AGREES,
                            f"make two {train.facts.get('base')} objects, one for training and one for evaluation, with the same indices",
                            place,
                        )
                    ]
    return []


def broken(DataLoader: Any) -> str:
    """Set the scale of the validation part."""
    del DataLoader
    return _program("check_part.dataset.scale = 0.0\n")


def fixed(DataLoader: Any) -> str:
    """Set nothing."""
    del DataLoader
    return _program("")


def _program(line: str) -> str:
    return (
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset, random_split\n"
        "class Signals(Dataset):\n"
        "    scale = 1.0\n"
        "    def __init__(self):\n"
        "        self.scale = 2.0\n"
        "    def __len__(self):\n"
        "        return 32\n"
        "    def __getitem__(self, index):\n"
        "        return torch.tensor([float(index)]) * self.scale\n"
        "train_part, check_part = random_split(Signals(), [20, 12])\n"
        f"{line}"
        "train = DataLoader(train_part, batch_size=4, shuffle=True)\n"
        "check = DataLoader(check_part, batch_size=4)\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x in train:\n"
        "    model(x).mean().backward()\n"
        "    optimizer.step()\n"
        "with torch.no_grad():\n"
        "    for x in check:\n"
        "        model(x)\n"
    )
