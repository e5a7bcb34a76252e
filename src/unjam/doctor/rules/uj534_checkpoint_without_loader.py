"""The training is saved in the middle of an epoch, and the loader's position is not.

What happened: the program writes the state of the model and the optimizer while an epoch goes on,
and nothing that says which samples the epoch has had.

Why: a run that goes on from this file begins the epoch again, with another order. Samples of the
begun epoch come twice, others not at all. torch's loader has no state that could be saved.

How to confirm: print the first indices after a resume.

How to fix: save the loader too: `unjam.DataLoader` has `state_dict()` and `load_state_dict()`, and
goes on at the next batch with the same order and random numbers. Or save only between epochs.

Limits: only `torch.save` is seen. A program that saves the number of its batch and passes over so
many batches after a resume is right if its order is seeded for each epoch: if such a number is in the
file, the finding is only a note. A sampler or dataset with a `state_dict` of its own is not reported,
nor are streams whose end is not known and samples that are drawn with replacement: they repeat anyway.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, SavedFile, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.loaders import trainers
from unjam.doctor.mechanisms.time_spent import LoadedToBeSkipped
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ534", "checkpoint-without-loader", Severity.WARNING)


NAMES = (LoadedToBeSkipped,)


def words(one: LoadedToBeSkipped) -> Words:
    """Say what it costs to get to where the training stopped."""
    return Words(
        f"the training loads {one.skipped:,} batches of {one.loader} only to skip them",
        "skip indices, not batches: use a sampler that starts where the training stopped, or unjam's loader.state_dict()",
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find a checkpoint that was written while a training loader was in the middle of a pass."""
    del cases
    for loader in trainers(watched):
        if loader.description.stateful or loader.description.replacement:
            continue
        for process in watched.processes:
            for saved in process.saved_files if process.pid == loader.pid else ():
                passed = _middle_of(saved, loader)
                if passed is not None:
                    return [_finding(loader, saved, passed)]
    return []


def _middle_of(saved: SavedFile, loader: WatchedLoader) -> tuple[int, int] | None:
    """The batches of the pass, and of all passes, if the file was written within a pass."""
    for number, at, batches, ever in saved.passes:
        epoch = next((one for one in loader.epochs if one.number == at), None)
        if number == loader.number and saved.optimizer and epoch is not None and batches:
            whole = epoch.expected if epoch.expected is not None else epoch.batches if epoch.done else None
            if whole is not None and batches < whole:
                return batches, ever
    return None


def _finding(loader: WatchedLoader, saved: SavedFile, passed: tuple[int, int]) -> Finding:
    size = int(loader.description.batch_size or 1)
    known = {count + more for count in passed for more in (-1, 0, 1)} | {count * size for count in passed}
    told = bool(known & saved.numbers)
    return Finding(
        RULE,
        f"the training is saved after {passed[0]} batches of an epoch, without the position of its loader",
        loader.name,
        (
            f"an optimizer's state is saved at {quoted(saved.place)}",
            "a number in the file may be that of the batch; nothing in it is the order or the random numbers"
            if told
            else "no number in the file tells how many batches there were",
            "a run that goes on from it begins the epoch again: samples come twice, and others not at all",
        ),
        SUGGESTED if told else AGREES,
        "save the loader's state as well: unjam.DataLoader has state_dict() and load_state_dict(); or save between epochs",
        saved.place or loader.made,
        severity=Severity.NOTE if told else None,
    )
