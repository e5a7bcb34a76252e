"""Who is named when a whole batch failed, without running anything of the user's again: by the traceback, and by looks."""

from __future__ import annotations

import contextlib
from typing import Any

from unjam.errors import CannotCollateError, short
from unjam.loader.worker.exceptions import type_name
from unjam.loader.worker.job import Job


def named_in_traceback(error: BaseException, dataset: Any, job: Job) -> tuple[int, tuple[str, ...]]:
    """The sample whose `__getitem__` the error came through: its position, where the dataset asked itself; else -1 and words."""
    indices, words = job.indices(), ""
    trace = error.__traceback__
    while trace is not None:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name == "__getitem__" and code.co_argcount >= 2:
            own, wanted = (values.get(name) for name in code.co_varnames[:2])
            position = next((at for at, index in enumerate(indices) if _same(index, wanted)), -1)
            if own is dataset and position >= 0:
                return position, ()
            words = words or f"it came through {type(own).__qualname__}.__getitem__({short(wanted)})"
        trace = trace.tb_next
    return -1, (words,) if words else ()


def looks(job: Job, data: list[Any], *, iterable: bool) -> tuple[str, ...]:
    """What is unlike the rest of a batch, in words: a hint, no judgement."""
    from unjam.loader import outlier  # noqa: PLC0415 - only when something fails

    names = [f"sample {job.index_at(at)!r}" for at in job.kept(len(data))]
    return tuple(f"unlike the others: {one.words(names, iterable)}" for one in outlier.unlike(data)[:2])


def explained(error: BaseException, words: str) -> CannotCollateError:
    """An error that says who, beside torch's own, which says what."""
    better = CannotCollateError(words)
    better.__cause__ = error
    return better.with_traceback(error.__traceback__)


def among(index: Any, others: list[Any]) -> bool:
    """Whether an index is one of these."""
    return any(_same(index, other) for other in others)


def _same(index: Any, other: Any) -> bool:
    if index is other:
        return True
    with contextlib.suppress(Exception):  # indices of the user's may not compare
        return bool(index == other)
    return False


def type_of(exception: Any) -> str:
    """The name of an exception's type, also where only its description travels."""
    return getattr(exception, "type_name", None) or type_name(type(exception))
