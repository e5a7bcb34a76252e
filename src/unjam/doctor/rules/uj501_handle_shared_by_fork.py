"""The workers share one open file or connection and disturb each other's reads.

What happened: the dataset opened a file (or an archive, which is a file) before the workers were
forked. All workers use the same open file in the kernel, with one position: when one worker seeks,
the next read of another worker starts there. Samples are wrong, or decoders fail. With a socket or
pipe, a worker can receive data meant for another one.

Why: fork copies the descriptor, not the open file behind it.

How to confirm: when every worker has its own descriptors, the samples are the same as without
workers.

How to fix: replace `self.file = open(path, "rb")` with `self.file = unjam.per_worker(open, path,
"rb")`: every process then opens its own file on first use, and the rest of the code stays the same.
By hand: keep the path in `__init__` and open the file on first use in `__getitem__`; or read with
`os.pread`, which uses no shared position. A lock would be slow and still wrong, because each
process keeps its own buffered data.

Limits: whether a run shows the fault depends on timing; a position that workers move is reported
even if no sample was wrong.
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case, Part
from unjam.doctor.facts.source import line_of, per_worker_change
from unjam.doctor.mechanisms.shared_open_files import ITERATOR, SharedOpenFile, iterator_of
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.queries.trials import basis_correct_with, differing, names, only_in_workers
from unjam.doctor.rules.rule import Finding, Rule, line_evidence
from unjam.units import count

RULE = Rule("UJ501", "handle-shared-by-fork", symptom="differs")


def words(one: SharedOpenFile) -> Words:
    """Say what is shared, and how to give each worker its own."""
    if ITERATOR[0] in one.culprit:
        return Words(
            f"{one.culprit} was created before the workers were forked, and all {one.workers} workers read from it: {one.failed}",
            f"create {one.culprit.removesuffix(ITERATOR[0])} in the worker that uses it, on first use, or give one of the two loaders num_workers=0",
        )
    what = "connection" if one.kind in ("socket", "pipe") else "open file"
    arguments = "function that connects it, its arguments" if what == "connection" else "open, path, ..."
    return Words(
        f"all {one.workers} workers share one {what}, {one.culprit}: {one.failed}",
        f"open {one.culprit} in every worker: replace it with unjam.per_worker({arguments}), or open it on first use in the worker",
        per_worker_change(line_of(one.place)),
    )


def detect(case: Case) -> Finding | None:
    """Find an open file whose position the workers moved, and the wrong samples that it causes."""
    trial = case.compared
    if not case.forked or trial is None:
        return None
    moved = list(trial.moved)
    sockets = sorted(case.connections, key=lambda part: -_workers_at(case, part))
    asked = max((_workers_at(case, part) for part in sockets), default=0)
    provoked = trial.plan.changed(epochs=6, workers=max(3, trial.plan.workers))
    longer = case.tried(provoked)
    if longer is not None and (not differing(case, trial) or longer.bad) and (differing(case, longer) or longer.bad):
        trial = longer
    wrong, failure = differing(case, trial), only_in_workers(case) or next(iter(longer.bad if longer else ()), None)
    if not moved and not (sockets and (wrong or failure or asked > 1)):
        return None
    if not wrong and failure is None and (case.loader.num_workers == 1 or not _used_by_samples(case, moved)):
        return None
    fd, target = moved[0] if moved else (sockets[0].state.fd, sockets[0].state.target)
    part = next((p for p in case.kinds("handle") if p.state.fd == fd), None)
    opened = case.process_facts.opened.get(str(target))
    name = iterator_of(part.path) if part else f"the file opened at {opened}" if opened else f"descriptor {fd}"
    is_connection = str(target).startswith("socket:")
    # a connection cannot be reopened without the program, but a single worker does not share it
    apart = trial.plan.changed(workers=1) if is_connection else trial.plan.changed(reopen=True)
    shown = bool(wrong or failure)
    locks = case.shared_locks
    # a single worker shares nothing else either, so the trials must show that samples use the connection
    kinds = {"socket"} if case.loader.driver == "unjam" else {"socket", "local socket"}
    is_used = not is_connection or any(kinds & one.waits.keys() for one in case.trials)
    what = f"one connection, {name}" if is_connection else f"one open file, {name} ({target})"
    harm = "each one's reads move the position for the others"
    if shown:
        harm = _harm(wrong, failure)
    elif is_connection:
        harm = f"{asked} of them wait for answers on it, and each can receive another worker's answer"
    return Finding(
        RULE,
        f"all workers share {what}: {harm}",
        name,
        (
            f"samples that differ from those without workers: {names(s.index for s in wrong)}" if wrong else "",
            f"sample {failure.index} fails only in a worker: {failure.type_name}: {failure.message[:100]}"
            if failure
            else "",
            f"the workers moved the position of descriptor {fd}, which they share" if moved else "",
            *line_evidence("opened at", opened or (part.place if part else None)),
        ),
        basis_correct_with(case, trial.plan, apart)
        if shown and is_used
        else SUGGESTED
        if is_connection and locks
        else AGREES,
        f"connect {name} in each worker: replace it with unjam.per_worker(function that connects it, its arguments), or connect on first use"
        if is_connection
        else f"open {name} in every worker: replace it with unjam.per_worker(open, path, ...), or keep the path and open it on first use",
        (part.place if part else None) or opened or case.loader.dataset_place,
        per_worker_change(line_of(part.place) if part else ""),
        wants=(provoked,) if moved and not shown else (),
    )


def _workers_at(case: Case, part: Part) -> int:
    """Return how many workers of a trial waited for this connection at some time."""
    target = part.state.target
    return max((int(trial.waited_on.get(target, 0)) for trial in case.trials), default=0)


def _used_by_samples(case: Case, moved: list[tuple[Any, ...]]) -> bool:
    return any(p.state.fd == fd for p in case.kinds("handle") for fd, _ in moved)


def _harm(wrong: list[Any], failure: Any) -> str:
    if wrong:
        indices = {s.index for s in wrong}
        return f"{count(len(indices), 'sample')} {'is' if len(indices) == 1 else 'are'} wrong"
    return f"{failure.type_name} in sample {failure.index}"
