"""The batches do not fit into shared memory.

What happened: torch sends tensors through /dev/shm. The batches made ahead need more of it than
there is. The result is an error about shared memory, a bus error, or, with a custom collate
function, a freeze.

Why: each worker makes `prefetch_factor` batches ahead, so batch × prefetch × workers must fit, plus
the batch in use. The size of the dataset does not matter: it never enters shared memory. Docker
gives 64 MB by default; `shmmax` has nothing to do with it.

How to confirm: compare the numbers; with fewer batches ahead the loader succeeds.

How to fix: use a larger /dev/shm (`docker run --shm-size=8g`, an emptyDir with medium Memory in
Kubernetes), fewer workers, a smaller `prefetch_factor`, or smaller batches (uint8 instead of
float32). unjam's own loader does not use /dev/shm.

Limits: other programs may use the same /dev/shm.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.trial import Trial
from unjam.doctor.mechanisms.trials import first_line, size
from unjam.doctor.proof import AGREES, SUGGESTED, Toggle
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ401", "shared-memory-too-small", symptom="died")


def detect(case: Case) -> Finding | None:
    """Compare the size of the batches ahead with the free space of /dev/shm."""
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
        f"batches of {size(batch)} × {ahead} ahead need {size(batch * ahead)} of shared memory; /dev/shm has {size(free)} free",
        f"/dev/shm ({size(free)} free) against num_workers={loader.num_workers}, prefetch_factor={loader.prefetch_factor}",
        (
            f"one batch: {size(batch)}; ahead: {loader.prefetch_factor} × {loader.num_workers} workers, and one in use",
            *((f"{failed.plan}: {_how(failed)}",) if failed else ()),
        ),
        Toggle(failed.plan if failed else idle, (small,), ground=AGREES if failed else SUGGESTED),
        (f"num_workers={most[0]}, prefetch_factor={most[1]} fits; " if most else "not even one worker fits; ")
        + f"or give /dev/shm {size(batch * ahead * 1.2)} (docker run --shm-size)",
        loader.made_at,
    )


def _how(trial: Trial) -> str:
    if trial.raised:
        return f"{trial.raised.type_name}: {first_line(trial.raised)[:140]}"
    return trial.outcome


def detect_live(scene: Scene) -> Finding | None:
    """Find a running program whose /dev/shm is full."""
    free, whole = scene.shm
    if not whole or free > 4_000_000:
        return None
    return Finding(
        RULE,
        f"/dev/shm is full: {size(free)} free of {size(whole)}",
        "/dev/shm",
        ("torch's workers put every batch there; the next one ends a worker with a bus error",),
        AGREES,
        "give it more room (--shm-size), or fewer and smaller batches ahead (num_workers, prefetch_factor, batch_size)",
        None,
    )


_PROGRAM = (
    "# shm=64m\n"
    "import torch\n"
    "from torch.utils.data import DataLoader, Dataset\n"
    "class Large(Dataset):\n"
    "    def __len__(self):\n"
    "        return 6\n"
    "    def __getitem__(self, i):\n"
    "        return torch.full(({size},), i, dtype=torch.uint8)\n"
    "for batch in DataLoader(Large(), batch_size=1, num_workers=2):\n"
    "    print(batch.shape)\n"
)
