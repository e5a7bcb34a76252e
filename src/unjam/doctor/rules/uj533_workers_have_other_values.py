"""A value that loading reads differs between the workers and the program.

What happened: loading reads a value (a global, a class attribute, a variable, or an attribute that
is not pickled), and it is different in the workers than in the program.

Why: `__getstate__` may leave it out. A worker that is not forked imports the program's modules
again and lacks what the program set afterwards (a global, a class attribute); a forked worker has
the values from the time when it was started.

How to confirm: print it in `__getitem__`, with and without workers.

How to fix: make it an attribute of the dataset, which is sent to the workers; or set it in
`worker_init_fn`.

Limits: only plain values are compared (numbers, strings, and lists and dicts of them).
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.program_facts import HASH
from unjam.doctor.mechanisms.state_differs import ContextVariableUnset, ValueDiffersInWorkers
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ533", "workers-have-other-values", symptom="differs", replaces=("UJ107", "UJ514"))


def words(one: ValueDiffersInWorkers | ContextVariableUnset) -> Words:
    """Say which value differs, and how to give it to the workers."""
    if isinstance(one, ContextVariableUnset):
        where = f"thread {one.thread!r}" if one.thread else "the workers"
        return Words(
            f"the context variable {one.culprit} has no value in {where}, where it is read: {one.failed}",
            f"give {one.culprit} a default, pass its value to the dataset, or start the thread with contextvars.copy_context().run",
        )
    harm = f": {one.failed}" if one.failed else f": {one.wrong} samples differ" if one.wrong else ""
    if one.setting and one.culprit == HASH:
        return Words(
            f"hash() of a string returns different numbers in the workers of {one.loader} ({one.start}) than in the program{harm}",
            "use a hash that is the same everywhere (zlib.crc32, hashlib), or set PYTHONHASHSEED before Python starts",
        )
    title = f"{one.culprit} differs between the workers of {one.loader} and the program{harm}"
    if one.setting:
        return Words(
            title,
            "make paths absolute before the folder changes"
            if "folder" in one.culprit
            else "also set it in worker_init_fn, or do not depend on it (dtype=..., device=...)",
        )
    if one.culprit.startswith("dataset"):
        return Words(title, f"let __getstate__ keep {one.culprit}, or create it again in __setstate__")
    return Words(title, f"make {one.culprit} an attribute of the dataset, or set it in worker_init_fn")
