"""A checkpoint saved in the middle of an epoch does not contain the loader's position.

What happened: the program saves the state of the model and the optimizer in the middle of an epoch,
but not which samples the epoch has already used.

Why: a run that resumes from this checkpoint starts the epoch again, in a different order. Some
samples of that epoch are used twice, others not at all. torch's loader has no state that can be
saved.

How to confirm: print the first indices after resuming.

How to fix: save the loader too: `unjam.DataLoader` has `state_dict()` and `load_state_dict()`, and
resumes at the next batch with the same order and random numbers. Or save only between epochs.

Limits: only `torch.save` is detected. A program that saves the batch number and skips that many
batches after resuming is correct if its order is seeded for each epoch: if such a number is in the
checkpoint, the finding is only a note. Samplers and datasets that have their own `state_dict` are
not reported, nor are streams of unknown length and samples that are drawn with replacement, which
repeat anyway.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, SavedFile, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.time_spent import LoadedToBeSkipped
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.queries.loaders import trainers
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ534", "checkpoint-without-loader", Severity.WARNING)


def words(one: LoadedToBeSkipped) -> Words:
    """Say how many batches are loaded only to be skipped."""
    return Words(
        f"the training loads {one.skipped:,} batches of {one.loader} only to skip them",
        "skip indices, not batches: use a sampler that starts where the training stopped, or unjam's loader.state_dict()",
    )


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find a checkpoint that was saved while a training loader was in the middle of an epoch."""
    for loader in trainers(watched):
        if loader.description.stateful or loader.description.replacement:
            continue
        for process in watched.processes:
            for saved in process.saved_files if process.pid == loader.pid else ():
                passed = _middle_of(saved, loader)
                if passed is not None:
                    return _finding(loader, saved, passed)
    return None


def _middle_of(saved: SavedFile, loader: WatchedLoader) -> tuple[int, int] | None:
    """Return the number of batches of the epoch, and of all epochs, if the checkpoint was saved within an epoch."""
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
    has_number = bool(known & saved.numbers)
    return Finding(
        RULE,
        f"a checkpoint saved after {passed[0]} batches of an epoch does not contain the position of the loader",
        loader.name,
        (
            f"an optimizer's state is saved at {quoted(saved.place)}",
            "a number in the checkpoint may be the batch number; the order and the random numbers are missing"
            if has_number
            else "no number in the checkpoint matches the number of batches",
            "a run that resumes from it starts the epoch again: some samples are used twice, others not at all",
        ),
        SUGGESTED if has_number else AGREES,
        "save the loader's state as well: unjam.DataLoader has state_dict() and load_state_dict(); or save between epochs",
        saved.place or loader.made,
        severity=Severity.NOTE if has_number else None,
    )
