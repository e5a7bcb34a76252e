"""Names the sample behind a failed batch, from the traceback and from differences between the samples.

That does not run user code again.
"""

from __future__ import annotations

import contextlib
from typing import Any

from unjam.errors import CannotCollateError, short, type_name
from unjam.loader.worker.exceptions import ExceptionRecord
from unjam.loader.worker.job import BatchJob


def named_in_traceback(error: BaseException, dataset: Any, job: BatchJob) -> tuple[int, tuple[str, ...]]:
    """Find the sample whose `__getitem__` raised the error.

    Return its position if the call was on `dataset` itself. Otherwise return -1 and a hint in words.
    """
    indices, hint = job.indices(), ""
    trace = error.__traceback__
    while trace is not None:
        code, values = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_name == "__getitem__" and code.co_argcount >= 2:
            holder, wanted = (values.get(name) for name in code.co_varnames[:2])
            position = next((at for at, index in enumerate(indices) if _same(index, wanted)), -1)
            if holder is dataset and position >= 0:
                return position, ()
            hint = hint or f"raised in {type(holder).__qualname__}.__getitem__({short(wanted)})"
        trace = trace.tb_next
    return -1, (hint,) if hint else ()


def describe_outliers(job: BatchJob, data: list[Any], *, iterable: bool) -> tuple[str, ...]:
    """Describe samples that differ from the rest of the batch. A hint, not a proof."""
    from unjam.loader.failures import outlier  # noqa: PLC0415 - only when something fails

    names = [f"sample {job.index_at(at)!r}" for at in job.kept(len(data))]
    return tuple(f"unlike the others: {one.words(names, iterable)}" for one in outlier.unlike(data)[:2])


def explained(error: BaseException, words: str) -> CannotCollateError:
    """Return an error that names the sample; its cause is torch's own error."""
    better = CannotCollateError(words)
    better.__cause__ = error
    return better.with_traceback(error.__traceback__)


def contains(index: Any, others: list[Any]) -> bool:
    """Return whether `index` equals one of `others`."""
    return any(_same(index, other) for other in others)


def _same(index: Any, other: Any) -> bool:
    if index is other:
        return True
    with contextlib.suppress(Exception):  # user-defined indices may not support ==
        return bool(index == other)
    return False


def type_of(exception: Any) -> str:
    """Return the name of an exception's type; `exception` may also be an `ExceptionRecord`."""
    return exception.type_name if isinstance(exception, ExceptionRecord) else type_name(type(exception))
