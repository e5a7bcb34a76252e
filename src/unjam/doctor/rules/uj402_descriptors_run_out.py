"""The loader runs out of file descriptors.

What happened: torch sends every tensor of a batch with a descriptor of its own, which stays open as long as the tensor lives. The
program comes to its limit: `Too many open files`, or `received 0 items of ancdata`.

Why: tensors of a batch × batches ahead, plus every tensor that the program keeps. Batches of many small tensors (lists, dicts of lists)
need many.

How to confirm: `ulimit -n` against the number of tensors; a higher limit or fewer tensors go through.

How to fix: put the tensors of a batch together in the collate function; raise the limit (`ulimit -n 65535`, or `resource.setrlimit`); or
`torch.multiprocessing.set_sharing_strategy("file_system")`, which needs room in /dev/shm and may leave files there. unjam's own loader uses
a fixed number of descriptors.

Limits: descriptors that the program opens for other ends are counted as they were at the first iter().
"""

from __future__ import annotations

from typing import Any

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.rules.judging import LIKELY, POSSIBLE, PROVEN, first_line, out_of_descriptors, quoted
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ402", "descriptors-run-out", symptom="raised", explains=("frozen",))
MARKS = ("Too many open files", "ancdata", "Errno 24")


def detect(case: Case) -> Finding | None:
    """Samples that keep files open; or tensors ahead against the limit."""
    return _kept_open(case) or _on_their_way(case)


def _kept_open(case: Case) -> Finding | None:
    full = [b for t in (case.alone, case.as_is) if t for b in t.bad if out_of_descriptors(b)]
    if not full:
        return None
    first = full[0]
    alone = case.alone.facts.get("state", []) if case.alone else []
    grown = [name for fact in alone for name in fact.get("grown", [])]
    name = grown[0] if grown else f"{first.place}"
    return Finding(
        RULE,
        f"samples open files and do not close them: after {case.world.descriptors:,} descriptors none is left",
        name,
        (
            f"sample {first.index}: {first.type_name}: {first.message[:120]}",
            *((f"raised at {quoted(first.place)}",) if first.place else ()),
            *((f"{name} grows with every sample",) if grown else ()),
            f"ulimit -n is {case.world.descriptors:,}",
        ),
        PROVEN if len(full) > 1 else LIKELY,
        f"close what the sample opens ({first.place}), or keep a few open at most",
        first.place,
    )


def _on_their_way(case: Case) -> Finding | None:
    loader, world, as_is = case.loader, case.world, case.as_is
    known = next((t for t in (case.alone, as_is) if t is not None and t.batches), None)
    if not loader.num_workers or known is None or as_is is None or loader.sharing != "file_descriptor":
        return None
    tensors = max(b.tensors for b in known.batches)
    ahead = loader.prefetch_factor * loader.num_workers + 1
    need = tensors * ahead + world.descriptors_used
    idle = as_is.plan.changed(idle=True, epochs=1)
    trials = [t for t in (as_is, case.tried(idle)) if t is not None]
    said = [
        t
        for t in trials
        if not t.fine and any(mark in t.output + (t.raised.trace if t.raised else "") for mark in MARKS)
    ]
    if need <= world.descriptors * 0.9 and not said:
        return None
    small = as_is.plan.changed(idle=True, epochs=1, workers=1, prefetch=1)
    well = case.tried(small)
    return Finding(
        RULE,
        f"{tensors} tensors in a batch × {ahead} batches ahead need {need:,} descriptors; the limit is {world.descriptors:,}",
        f"ulimit -n {world.descriptors} against {tensors} tensors in a batch",
        (
            f"every tensor on its way holds a descriptor; {world.descriptors_used} were open before",
            *((f"{said[0].plan}: {first_line(said[0].raised)[:140] if said[0].raised else 'failed'}",) if said else ()),
            *((f"{well.plan}: all is well",) if well and well.fine else ()),
        ),
        PROVEN if said and well and well.fine else LIKELY if said else POSSIBLE,
        f"stack the {tensors} tensors into few in {loader.collate}, or raise the limit: ulimit -n {max(4096, need * 4)}",
        loader.made_at,
        wants=(idle, small),
    )


def witness(scene: Scene) -> Finding | None:
    """A running process that has nearly all descriptors it may have."""
    for one in scene.processes:
        if one.role in ("main", "worker") and one.most_files and one.open_files > 0.95 * one.most_files:
            return Finding(
                RULE,
                f"{one.name} has {one.open_files:,} of the {one.most_files:,} descriptors it may have",
                one.name,
                ("each tensor of a batch under way, and each that the program keeps, holds one",),
                LIKELY,
                "torch.multiprocessing.set_sharing_strategy('file_system'), a higher `ulimit -n`, or copies of what is kept",
                one.thread.place if one.threads else None,
            )
    return None


def broken(DataLoader: Any) -> None:
    """Batches of many small tensors, and few descriptors."""
    import resource

    from unjam.doctor.rules.programs import Numbers

    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 4096))

    def collate(samples: list[Any]) -> list[Any]:
        return [part.clone() for sample in samples for part in sample]

    for _ in DataLoader(Numbers(64), batch_size=16, num_workers=2, collate_fn=collate):
        pass


def fixed(DataLoader: Any) -> None:
    """The tensors put together."""
    import resource

    from unjam.doctor.rules.programs import Numbers

    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 4096))
    for _ in DataLoader(Numbers(64), batch_size=16, num_workers=2):
        pass
