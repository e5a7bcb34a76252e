"""Workers have other values of a global, a class attribute or a variable than the program.

What happened: loading reads something outside of the dataset, and it has another value in the
workers than in the program.

Why: `__getstate__` may leave it out. And a worker that is not forked imports the program's modules anew. What the program set afterwards
(a global, a class attribute) is not there; under fork, it is what the program had when the workers
started.

How to confirm: print it in `__getitem__`, with and without workers.

How to fix: make it an attribute of the dataset, which is sent to the workers; or set it in
`worker_init_fn`.

Limits: plain values only (numbers, texts, lists, dictionaries of them).
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.program_facts import HASH
from unjam.doctor.mechanisms.state_differs import ContextVariableUnset, ValueDiffersInWorkers
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ533", "workers-have-other-values", symptom="differs", replaces=("UJ107", "UJ514"))


NAMES = (ValueDiffersInWorkers, ContextVariableUnset)


def words(one: ValueDiffersInWorkers | ContextVariableUnset) -> Words:
    """Say what differs, and how it gets to the workers."""
    if isinstance(one, ContextVariableUnset):
        where = f"thread {one.thread!r}" if one.thread else "the workers"
        return Words(
            f"the context variable {one.variable} has no value in {where}, where the loader is used: {one.failed}",
            f"give {one.variable} a default, pass its value to the dataset, or start the thread with contextvars.copy_context().run",
        )
    harm = f": {one.failed}" if one.failed else f": {one.wrong} samples differ" if one.wrong else ""
    if one.setting and one.culprit == HASH:
        return Words(
            f"hash() of a text gives other numbers in the workers of {one.loader} ({one.start}) than in the program{harm}",
            "use a hash that is the same everywhere (zlib.crc32, hashlib), or set PYTHONHASHSEED before Python starts",
        )
    if one.setting:
        cure = (
            "make paths absolute before the folder changes"
            if "folder" in one.culprit
            else "set it in worker_init_fn, too, or do not depend on it (dtype=..., device=...)"
        )
        return Words(f"{one.culprit} of the workers of {one.loader} is not that of the program{harm}", cure)
    if one.culprit.startswith("dataset"):
        return Words(
            f"{one.culprit} has another value in the workers of {one.loader} than in the program{harm}",
            f"let __getstate__ keep {one.culprit}, or make it again in __setstate__",
        )
    return Words(
        f"{one.culprit} has another value in the workers of {one.loader} than in the program{harm}",
        f"make {one.culprit} an attribute of the dataset, or set it in worker_init_fn",
    )
