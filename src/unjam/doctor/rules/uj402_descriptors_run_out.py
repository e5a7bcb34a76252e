"""The loader runs out of file descriptors.

What happened: torch sends every tensor of a batch with its own descriptor, which stays open as long
as the tensor exists. The program reaches its limit: `Too many open files`, or `received 0 items of
ancdata`.

Why: the program needs one descriptor for each tensor of each prefetched batch, plus one for every
tensor that it keeps. Batches of many small tensors (lists, dicts of lists) need many.

How to confirm: compare `ulimit -n` with the number of tensors; with a higher limit or fewer tensors
the loader succeeds.

How to fix: stack the tensors of a batch in the collate function; raise the limit (`ulimit -n
65535`, or `resource.setrlimit`); or use
`torch.multiprocessing.set_sharing_strategy("file_system")`, which needs space in /dev/shm and may
leave files there. unjam's own loader uses a fixed number of descriptors.

Limits: descriptors that the program opens for other purposes are counted once, at the first iter().
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.proof import AGREES, SUGGESTED, Toggle
from unjam.doctor.queries.trials import ending_words, out_of_descriptors
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ402", "descriptors-run-out", symptom="raised", explains=("frozen",))
MARKS = ("Too many open files", "ancdata", "Errno 24")


def detect(case: Case) -> Finding | None:
    """Find samples that keep files open, or more prefetched tensors than the limit allows."""
    return _files_kept_open(case) or _tensors_in_flight(case)


def _files_kept_open(case: Case) -> Finding | None:
    full = [b for t in (case.alone, case.as_is) if t for b in t.bad if out_of_descriptors(b)]
    if not full:
        return None
    first = full[0]
    grown = case.alone.dataset_changes.grown if case.alone else ()
    name = grown[0] if grown else f"{first.place}"
    return Finding(
        RULE,
        f"samples open files and do not close them: all {case.process_facts.descriptors:,} descriptors are in use",
        name,
        (
            f"sample {first.index}: {first.type_name}: {first.message[:120]}",
            *line_evidence("raised at", first.place),
            f"{name} grows with every sample" if grown else "",
            f"ulimit -n is {case.process_facts.descriptors:,}",
        ),
        AGREES,
        f"close what the sample opens ({first.place}), or limit the number of open files",
        first.place,
    )


def _tensors_in_flight(case: Case) -> Finding | None:
    loader, process_facts, as_is = case.loader, case.process_facts, case.as_is
    known = next((t for t in (case.alone, as_is) if t is not None and t.batches), None)
    if not loader.num_workers or known is None or as_is is None or loader.sharing != "file_descriptor":
        return None
    tensors = max(b.tensors for b in known.batches)
    ahead = loader.prefetch_factor * loader.num_workers + 1
    need = tensors * ahead + process_facts.descriptors_used
    idle = as_is.plan.changed(idle=True, epochs=1)
    trials = [t for t in (as_is, case.tried(idle)) if t is not None]
    failed = [
        t
        for t in trials
        if not t.fine and any(mark in t.output + (t.raised.trace if t.raised else "") for mark in MARKS)
    ]
    if need <= process_facts.descriptors * 0.9 and not failed:
        return None
    small = as_is.plan.changed(idle=True, epochs=1, workers=1, prefetch=1)
    return Finding(
        RULE,
        f"{tensors} tensors per batch × {ahead} prefetched batches need {need:,} descriptors; the limit is {process_facts.descriptors:,}",
        f"ulimit -n {process_facts.descriptors} with {tensors} tensors per batch",
        (
            f"every tensor in transit holds a descriptor; {process_facts.descriptors_used} descriptors were open before",
            *(f"{t.plan}: {ending_words(t)}" for t in failed[:1]),
        ),
        Toggle(failed[0].plan if failed else idle, (small,), ground=AGREES if failed else SUGGESTED),
        f"stack the {tensors} tensors into a few in {loader.collate}, or raise the limit: ulimit -n {max(4096, need * 4)}",
        loader.made_at,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a running process that has nearly reached its limit of descriptors."""
    for one in scene.processes:
        if one.role in ("main", "worker") and one.most_files and one.open_files > 0.95 * one.most_files:
            return Finding(
                RULE,
                f"{one.name} has {one.open_files:,} of at most {one.most_files:,} descriptors open",
                one.name,
                ("each tensor of a batch in transit, and each tensor that the program keeps, holds one",),
                AGREES,
                "call torch.multiprocessing.set_sharing_strategy('file_system'), raise `ulimit -n`, or keep copies instead of batches",
                one.thread.place if one.threads else None,
            )
    return None
