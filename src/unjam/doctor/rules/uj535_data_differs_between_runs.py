"""The training samples, or their order, differ each time the program starts.

What happened: the program ran twice up to its first loader, and the data was chosen or ordered
differently. The program also saves checkpoints from which training can resume.

Why: the choice comes from an unseeded generator (`random_split`, `random.shuffle` at import), from
a set, or from a folder that is listed without sorting. A run that resumes from a checkpoint then
trains on samples that were meant for evaluation, and an index in a log names a different sample in
each run.

How to confirm: print the first items of the dataset in two runs.

How to fix: seed the choice (`random_split(..., generator=torch.Generator().manual_seed(0))`,
`random.Random(0).shuffle(files)`), sort what comes from a folder or a set, or save the choice.

Limits: only programs that save an optimizer's state with `torch.save` are run a second time, up to
their first loader. Only the first loader of each process is compared. Data that consists of random
numbers is not reported, nor is a choice of indices that the program saves. The doctor cannot know
whether a program saves a list of names or a seed and restores its choice from that, so the finding
is never proven.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ535", "data-differs-between-runs", Severity.WARNING)
CHOOSE = (
    "random_split", "shuffle", "permutation", "randperm", "sample", "choice", "choices", "train_test_split", "listdir", "scandir",
    "iterdir", "glob", "rglob", "set",
)  # fmt: skip
# the share of the items that both runs have; below it, the data is generated in each run
COMMON = 0.3
# if a checkpoint has this many of the chosen indices, it has the choice
ENOUGH = 200


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Compare the first loaders of two runs."""
    later = [one for process in watched.second_run for one in process.loaders]
    saved = {number for process in watched.processes for one in process.saved_files for number in one.numbers}
    for loader in trainers(watched):
        other = next((one for one in later if _alike(one, loader)), None)
        if other is None:
            continue
        for name, one, two in _held(loader, other):
            if one == two or not _overlap(one, two) or _is_saved(one, saved):
                continue
            missing = len(set(one) - set(two))
            place = loader.made or loader.place
            home = loader.home
            files = dict.fromkeys(at.file for at in (place, home) if at is not None)
            chosen = next((at for file in files for at in attribute_calls(file, CHOOSE) if _unseeded(at)), None)
            what = (
                f"{missing:,} of its {len(one):,} samples differ"
                if missing
                else f"its {len(one):,} samples have a different order"
            )
            return Finding(
                RULE,
                f"the data of {loader.name} differs between two runs: {what}",
                f"{name} of {loader.description.dataset}",
                (
                    f"the program ran twice up to its first loader: {what}",
                    *line_evidence("chosen at", chosen),
                    "the program saves checkpoints: unless it restores the choice from them, a resumed run trains on evaluation samples"
                    if missing
                    else "an index names a different sample in each run: training cannot resume within an epoch",
                ),
                AGREES,
                "seed the choice of the samples, or sort them, or save the choice with the checkpoint",
                chosen or place,
                severity=None if missing else Severity.NOTE,
            )
    return None


def _alike(one: WatchedLoader, other: WatchedLoader) -> bool:
    return (
        one.made == other.made and one.number == other.number and one.description.dataset == other.description.dataset
    )


def _held(loader: WatchedLoader, other: WatchedLoader) -> list[tuple[str, list[Any], list[Any]]]:
    """List what both runs chose: the indices of a Subset, and the items of each list of the dataset."""
    found = [("indices", list(loader.description.subset or []), list(other.description.subset or []))]
    items, others = loader.description.items, other.description.items
    return found + [(name, list(values), list(others.get(name) or [])) for name, values in items.items()]


def _is_saved(chosen: list[Any], saved: set[int]) -> bool:
    """Whether a checkpoint has these indices; only a few hundred numbers of each file are known."""
    return len(saved & set(chosen)) >= min(len(set(chosen)), ENOUGH)


def _overlap(one: list[Any], two: list[Any]) -> bool:
    both = set(one) & set(two)
    return len(both) > COMMON * max(len(set(one)), len(set(two)), 1)


def _unseeded(place: Place) -> bool:
    return not any(word in quoted(place) for word in ("generator=", "manual_seed", "random_state=", "sorted("))
