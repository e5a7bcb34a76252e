"""A batch cannot be sent from a worker, so the loader hangs.

What happened: the worker made the batch, but the batch holds something that cannot be pickled.
torch gives the batch to a background thread of the worker, which prints a traceback and drops it.
The main process never learns that the batch failed and waits forever.

Why: a batch is pickled to be sent from one process to another. Local functions and classes,
generators, open files, locks, and tensors with a gradient history cannot be pickled.

How to confirm: with `num_workers=0` nothing is pickled, and the batch is fine; pickling the named
part of a batch fails.

How to fix: return plain data from the dataset and the collate function: tensors (detached), arrays,
numbers, strings, and classes defined at module level. unjam's own loader raises an error instead of
waiting.

Limits: the doctor tries only the first batches; it does not see a later batch that differs.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.mechanisms.unsendable import BatchCannotBeUnpickled, BatchLost
from unjam.doctor.proof import AGREES
from unjam.doctor.queries import scenes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import every

RULE = Rule("UJ103", "batch-cannot-return", symptom="frozen")


def words(one: BatchCannotBeUnpickled | BatchLost) -> Words:
    """Say what could not be pickled or unpickled."""
    if isinstance(one, BatchLost):
        return Words(
            f"a batch from a worker was lost: pickling {one.culprit} raised {one.failed}",
            "return tensors, arrays, numbers and strings from the dataset and the collate function; read lazy objects "
            "(a lazily opened image, a cursor) in __getitem__",
        )
    return Words(
        f"a batch from a worker cannot be unpickled: {one.owner} raises {one.failed}",
        f"make {one.owner} work with pickle: __getattr__ must raise AttributeError for names that start with __, and must not use "
        "attributes that are not set yet; or return plain tensors instead",
    )


def detect(case: Case) -> Finding | None:
    """Find a batch that torch cannot pickle."""
    alone, as_is = case.alone, case.as_is
    unsent = alone.unsendable if alone else None
    if unsent is None or not case.loader.num_workers:
        return None
    waits = as_is is not None and as_is.outcome == "hung" and not as_is.batches
    path, maker = unsent.path, case.loader.dataset if case.loader.default_collate else case.loader.collate
    return Finding(
        RULE,
        f"a batch cannot be sent back from a worker: the type of {path} is {unsent.type_name}"
        + ("; the loader waits forever" if waits else ""),
        path,
        (
            unsent.reason,
            "with workers: no batch arrived, and every process waited" if waits else "",
            "without workers the same batch loads",
        ),
        AGREES,
        f"return plain data instead of {path} from {maker}: "
        + (".detach() the tensor" if "grad" in unsent.reason else "tensors, arrays, numbers, strings"),
        case.loader.dataset_place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a main process that waits for a batch while all its workers are idle."""
    for main in scene.mains:
        workers = [one for one in scene.workers(main) if not one.ended]
        idle = bool(workers) and all(one.activity.stage == "idle" and one.thread.steady for one in workers)
        quiet = main.silent is None or main.silent >= scenes.WORTH_NAMING
        if main.activity.stage != "waits" or not main.thread.steady:
            continue
        if not idle or not quiet or scenes.replacement_workers(workers):
            continue
        if any(one.ended and one.parent == main.pid for one in scene.processes) or main.activity.loader == "process":
            continue
        return Finding(
            RULE,
            f"{main.name} waits for a batch that no worker is making: the batch was lost",
            "the batch, or the exception, that a worker returned",
            (
                f"{every(len(workers), 'worker')} {'is idle and waits' if len(workers) == 1 else 'are idle and wait'} for work",
                *scenes.silence_words(main),
                "multiprocessing's feeder thread drops what it cannot pickle, and only prints a traceback",
                f"in {main.log}: {main.last_error}"
                if main.last_error
                else "look for a traceback of _feed in what the program printed",
            ),
            AGREES,
            "return plain tensors, arrays, numbers and strings from the dataset and the collate function (no lambda, generator, "
            "open file), and raise exceptions that can be pickled",
            main.thread.place,
        )
    return None
