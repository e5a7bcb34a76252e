"""The prefetched batches do not fit in /dev/shm.

What happened: torch sends tensors through /dev/shm. The prefetched batches need more of it than is
available. The result is an error about shared memory, a bus error, or, with a custom collate
function, a freeze.

Why: each worker prefetches `prefetch_factor` batches, so batch × prefetch × workers must fit, plus
the batch in use. The size of the dataset does not matter: it is never put into shared memory.
Docker gives 64 MB by default; `shmmax` has no effect on it.

How to confirm: compare the numbers; with fewer prefetched batches the loader succeeds.

How to fix: use a larger /dev/shm (`docker run --shm-size=8g`, an emptyDir with medium Memory in
Kubernetes), fewer workers, a smaller `prefetch_factor`, or smaller batches (uint8 instead of
float32). unjam's own loader does not use /dev/shm.

Limits: other programs may use the same /dev/shm.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.proof import AGREES, SUGGESTED, Toggle
from unjam.doctor.queries.trials import ending_words
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import size

RULE = Rule("UJ401", "shared-memory-too-small", symptom="died")


def detect(case: Case) -> Finding | None:
    """Compare the size of the prefetched batches with the free space of /dev/shm."""
    loader, free, as_is = case.loader, case.process_facts.shm_free, case.as_is
    known = next((t for t in (case.alone, as_is) if t is not None and t.batches), None)
    if not loader.num_workers or free is None or known is None or as_is is None:
        return None
    batch = max(b.storage for b in known.batches)
    ahead = loader.prefetch_factor * loader.num_workers + 1
    if not batch or batch * ahead <= free * 0.9:
        return None
    idle = as_is.plan.changed(idle=True, epochs=1)
    small = as_is.plan.changed(idle=True, epochs=1, workers=1, prefetch=1)
    failed = next((t for t in (as_is, case.tried(idle)) if t is not None and not t.fine), None)
    fits = int(free * 0.9 / batch) - 1
    most = max(
        (
            (w, f)
            for w in range(1, loader.num_workers + 1)
            for f in range(1, loader.prefetch_factor + 1)
            if w * f <= fits
        ),
        key=lambda p: (p[0] * p[1], p[0]),
        default=None,
    )
    return Finding(
        RULE,
        f"{ahead} prefetched batches of {size(batch)} need {size(batch * ahead)} of shared memory; /dev/shm has {size(free)} free",
        f"/dev/shm ({size(free)} free) with num_workers={loader.num_workers}, prefetch_factor={loader.prefetch_factor}",
        (
            f"one batch: {size(batch)}; prefetched: {loader.prefetch_factor} × {loader.num_workers} workers, and one in use",
            f"{failed.plan}: {ending_words(failed)}" if failed else "",
        ),
        Toggle(failed.plan if failed else idle, (small,), ground=AGREES if failed else SUGGESTED),
        (f"use num_workers={most[0]}, prefetch_factor={most[1]}, or " if most else "even one worker does not fit: ")
        + f"enlarge /dev/shm to {size(batch * ahead * 1.2)} (docker run --shm-size), or use unjam's loader",
        loader.made_at,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a running program whose /dev/shm is full."""
    free, whole = scene.shm
    if not whole or free > 4_000_000:
        return None
    return Finding(
        RULE,
        f"/dev/shm is full: {size(free)} free of {size(whole)}",
        "/dev/shm",
        ("torch's workers put every batch there; the next batch ends a worker with a bus error",),
        AGREES,
        "enlarge it (--shm-size), or prefetch fewer and smaller batches (num_workers, prefetch_factor, batch_size)",
        None,
    )
