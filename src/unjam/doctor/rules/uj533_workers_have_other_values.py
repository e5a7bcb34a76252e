"""Workers have other values of a global, a class attribute or a variable than the program.

What happened: loading reads something outside of the dataset, and it has another value in the
workers than in the program.

Why: `__getstate__` may leave it out. And a worker that is not forked imports the program's modules anew. What the program set afterwards
(a global, a class attribute) is not there; under fork, it is what the program had when the workers
started.

How to confirm: print it in `__getitem__`, with and without workers.

How to fix: make it an attribute of the dataset, which is sent to the workers; or set it in
`worker_init_fn`.

Limits: plain values only (numbers, texts, lists, dictionaries of them).
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source_places import stored
from unjam.doctor.facts.watched import Watched, WatchedLoader
from unjam.doctor.proof import OBSERVED
from unjam.doctor.rules.judging import differing, quoted
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ533", "workers-have-other-values", symptom="differs", replaces=("UJ107", "UJ514"))


def detect(case: Case) -> None:
    """The program as it ran says more."""
    del case


def detect_program(watched: Watched, cases: list[Case]) -> list[Finding]:
    """Compare what loading reads in the program with what it reads in the workers."""
    for loader in watched.loaders:
        other = _other(loader)
        if not other:
            continue
        case = next((one for one in cases if one.seen is loader), None)
        wrong = differing(case, case.compared) if case is not None else []
        files = {place.file for place in (loader.place, loader.made) if place is not None}
        if case is not None and case.loader.dataset_place is not None:
            files.add(case.loader.dataset_place.file)
        name = other[0].rpartition(".")[2]
        place = next((at for file in sorted(files) for at in stored(file, name)), None)
        return [
            Finding(
                RULE,
                f"{other[0]} has another value in the workers of {loader.name} than in the program",
                other[0],
                (
                    f"functions that load samples use {other[0]}",
                    *((f"set at {quoted(place)}",) if place else ()),
                    *((f"{len(wrong)} samples differ between workers and no workers",) if wrong else ()),
                    *((f"also: {', '.join(other[1:4])}",) if other[1:] else ()),
                ),
                OBSERVED,
                f"make {other[0]} an attribute of the dataset, or set it in worker_init_fn"
                if not other[0].startswith("dataset")
                else f"let __getstate__ keep {other[0]}, or make it again in __setstate__",
                place or loader.made or loader.place,
            )
        ]
    return []


def _other(loader: WatchedLoader) -> list[str]:
    """The names outside of the dataset with one value in the program and another one in all workers."""
    if not loader.epochs or not loader.workers:
        return []
    epoch = loader.epochs[0]
    found = []
    for path, value in epoch.held.items():
        # a handle that is opened anew in the worker is no data
        hidden = value.startswith("object ") or path not in loader.facts.get("reads", ())
        if path.startswith("collate_fn") or (path.startswith("dataset") and hidden):
            continue
        values = {held.get(path) for held in epoch.worker_held.values()}
        # what a worker makes for itself is no other value
        made = value == "nothing" or any(str(one).startswith("object ") for one in values)
        if len(values) == 1 and None not in values and value not in values and not made:
            found.append(path)
    return found


def broken(DataLoader: Any) -> str:
    """Set a global before the workers start anew."""
    del DataLoader
    return _program("SCALE")


def fixed(DataLoader: Any) -> str:
    """Keep it in the dataset."""
    del DataLoader
    return _program("self.scale")


def _program(scale: str) -> str:
    return (
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "SCALE = 1.0\n"
        "class Scaled(Dataset):\n"
        "    def __init__(self):\n"
        "        self.scale = SCALE\n"
        "    def __len__(self):\n"
        "        return 16\n"
        "    def __getitem__(self, index):\n"
        f"        return torch.tensor(index * {scale})\n"
        "if __name__ == '__main__':\n"
        "    SCALE = 2.0\n"
        "    for batch in DataLoader(Scaled(), batch_size=4, num_workers=1, multiprocessing_context='spawn'):\n"
        "        pass\n"
    )
