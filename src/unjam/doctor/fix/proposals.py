"""Which edits could remove a finding's cause, the smallest first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.trial import Place
from unjam.doctor.fix import edits
from unjam.doctor.fix.source_edit import CannotEdit, SourceEdit
from unjam.doctor.rules.rule import Finding
from unjam.system.file_owner import is_users


@dataclass(frozen=True, slots=True)
class Proposal:
    """A changed file. original: its text before this edit. words: what the edit does."""

    path: str
    original: str
    text: str
    words: str


def proposals(finding: Finding, cases: list[Case], changed: dict[str, str]) -> Iterator[Proposal | str]:
    """Yield the edits for a finding, or a text that says why one is refused. `changed`: files that were edited before."""
    case = _case_of(finding, cases)
    candidates = list(_candidates(finding, case))
    if not candidates:
        yield f"{finding.rule.code} has no automatic edit: the fix needs your decision"
    for words, place, change in candidates:
        if protected := _protected_by(case.part(finding.culprit) if case is not None else None, case):
            yield f"{words}: the lock may protect {protected}, which all workers would then use at the same time"
            return
        if place is None or not os.path.isfile(place.file) or not is_users(place.file):
            yield f"{words}: the line to change is unknown"
            continue
        try:
            original = changed.get(place.file) or _text(place.file)
            edit = SourceEdit(place.file, original)
            change(edit)
            yield Proposal(place.file, original, edit.edited_text(), words)
        except (CannotEdit, OSError, UnicodeDecodeError) as error:
            yield f"{words}: {error}"


def _text(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _case_of(finding: Finding, cases: list[Case]) -> Case | None:
    """The loader that a finding is about."""
    for case in cases:
        places = (case.loader.made_at, case.loader.iterated_at, case.loader.dataset_place)
        if finding.location in places or any(part.path == finding.culprit for part in case.parts):
            return case
    return cases[0] if cases else None


def _protected_by(lock: Part | None, case: Case | None) -> str:
    """What a lock may protect and all workers share: with one lock per worker, they would use it at the same time."""
    if lock is None or case is None or lock.kind != "lock":
        return ""
    shared = [one.path for one in case.parts if one.kind in ("handle", "queue")]
    if lock.state.between_processes:
        shared.append("data shared by the processes")
    return ", ".join(shared[:3])


_Candidate = tuple[str, Place | None, Callable[[SourceEdit], None]]


def _candidates(finding: Finding, case: Case | None) -> Iterator[_Candidate]:  # noqa: PLR0915 - one case for each code
    code, culprit, place = finding.rule.code, finding.culprit, finding.location
    loader = case.loader if case is not None else None
    made = loader.made_at if loader is not None else None
    home = (loader.dataset_place if loader is not None else None) or place
    iterated = loader.iterated_at if loader is not None else place
    part = case.part(culprit) if case is not None else None
    set_at = (part.place if part is not None else None) or place
    dataset, attribute = loader.dataset if loader is not None else "", culprit.rpartition(".")[2]

    def at(line: Place | None, function: Callable[..., None], *given: str) -> Callable[[SourceEdit], None]:
        return lambda edit: function(edit, line.line if line is not None else 0, *given)

    match code:
        case "UJ501" | "UJ201" | "UJ202" | "UJ204" | "UJ101" | "UJ107" | "UJ206":
            yield "create it in each worker", set_at, at(set_at, edits.make_per_worker)
            if code == "UJ101":
                yield "replace the lambda with a module-level function", set_at, at(set_at, edits.name_lambda)
        case "UJ105":
            yield "add a main guard", iterated, at(iterated, edits.add_main_guard)
        case "UJ502" | "UJ519" if case is None or case.loader.iterable:
            owner = culprit.partition(".")[0] if "__iter__" in culprit else dataset
            yield "divide the stream among the workers and ranks", home, lambda edit: edits.shard_stream(edit, owner)
        case "UJ505" | "UJ506":
            yield "seed the generator in the worker", set_at, at(set_at, edits.seed_per_worker)
        case "UJ510":
            yield "call set_epoch in the loop over epochs", iterated, at(iterated, edits.call_set_epoch)
        case "UJ508":
            yield "raise the exception again", place, at(place, edits.raise_again)
        case "UJ517":
            name = culprit.partition(" ")[0].partition(".")[0]
            yield "yield a copy of the list", place, lambda edit: edits.copy_yielded_list(edit, name)
        case "UJ507":
            yield "return a copy of the buffer", home, lambda edit: edits.copy_returned(edit, dataset, attribute)
        case "UJ524":
            yield "create samples from a copy", home, lambda edit: edits.copy_held(edit, dataset, attribute)
        case "UJ520":
            yield "define __getitems__", place, lambda edit: edits.load_batches_by_item(edit, culprit.partition(".")[0])
        case "UJ604" | "UJ607":
            yield "keep the workers between epochs", made, at(made, edits.set_option, "persistent_workers", "True")
        case "UJ516":
            yield "start new workers for each epoch", made, at(made, edits.set_option, "persistent_workers", "False")
        case "UJ504":
            yield "keep the last batch of each worker", made, at(made, edits.set_option, "drop_last", "False")
        case "UJ404":
            yield "share the list between workers", set_at, at(set_at, edits.share_list)
        case "UJ605":
            yield "load without workers", made, at(made, edits.set_option, "num_workers", "0")
        case "UJ606":
            yield "use two workers", made, at(made, edits.set_option, "num_workers", "2")
        case "UJ403" | "UJ401":
            yield "prefetch one batch for each worker", made, at(made, edits.set_option, "prefetch_factor", "1")
            yield "use unjam's loader", made, edits.use_unjam
        case "UJ103" | "UJ104" | "UJ203" | "UJ402" | "UJ407":
            yield "use unjam's loader", made, edits.use_unjam
        case _:
            return
