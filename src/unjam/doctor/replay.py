"""`unjam replay`: loads a sample of an error log again, in this process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from unjam.doctor.check.target.program import find_object
from unjam.doctor.facts.exception_line import exception_line
from unjam.loader.failures.error_log import incidents
from unjam.loader.failures.incident import Incident
from unjam.loader.worker.sample_random import replay_sample
from unjam.system.file_owner import is_ours
from unjam.units import duration


class CannotReplay(Exception):
    """The sample cannot be loaded again; the message says why."""


def incident_at(log: str, number: int) -> Incident:
    """Return the incident in a line of an error log, counted from 1; -1 is the last line."""
    at, incident = 0, None
    try:
        for at, incident in enumerate(incidents(log), 1):  # noqa: B007 - used after the loop
            if at == number:
                break
    except OSError as error:
        raise CannotReplay(f"{log} cannot be read: {error.strerror}") from error
    if number not in (at, -1) or not at:
        raise CannotReplay(
            f"{log} has only {at} lines" if at > 1 else f"{log} has only 1 line" if at else f"{log} is empty"
        )
    if incident is None:
        raise CannotReplay(f"line {at} of {log} is not an incident")
    return incident


def dataset_of(target: str) -> Any:
    """Return the dataset that `package.module:thing` or `file.py:thing` names; a loader has one."""
    try:
        found = find_object(target)
    except SystemExit as end:  # the object is missing, or cannot be made without arguments
        raise CannotReplay(str(end)) from end
    except Exception as error:
        raise CannotReplay(
            f"{target} cannot be imported: {exception_line(type(error).__name__, str(error))}"
        ) from error
    found = found[0] if isinstance(found, (list, tuple)) and found else found
    return getattr(found, "dataset", found) if hasattr(found, "batch_sampler") else found


def replay(incident: Incident, dataset: Any, say: Callable[[str], None], *, debug: bool = False) -> bool:
    """Load the sample of an incident again; return whether it failed again."""
    index = incident.sample if incident.sample is not None else next(iter(incident.samples), None)
    if index is None or not hasattr(type(dataset), "__getitem__"):
        raise CannotReplay("the incident has no sample that can be loaded by index")
    known = incident.seed is not None and incident.epoch is not None
    how = (
        f"with the random numbers of epoch {incident.epoch}"
        if known
        else 'with different random numbers (with rng="sample", they would be the same)'
    )
    say(f"loading sample {index} again, {how}; its failure was: {incident.what.splitlines()[0]}")
    begun = time.monotonic()
    try:
        sample = replay_sample(dataset, index, incident.seed if known else None, incident.epoch or 0)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
        say("".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(error)).rstrip())
        if debug:
            import pdb  # noqa: PLC0415, T100 - the user wants it

            pdb.post_mortem(error.__traceback__)
        return True
    say(f"it loaded without an error, in {duration(time.monotonic() - begun)}: {_described(sample)}")
    return False


def _described(sample: Any, depth: int = 2) -> str:
    kind = type(sample).__name__
    if hasattr(sample, "shape") and hasattr(sample, "dtype"):
        return f"{kind} {tuple(sample.shape)} {sample.dtype}"
    if isinstance(sample, dict) and depth:
        return "{" + ", ".join(f"{key!r}: {_described(one, depth - 1)}" for key, one in list(sample.items())[:8]) + "}"
    if isinstance(sample, (list, tuple)) and depth:
        return f"{kind} of {len(sample)}: " + ", ".join(_described(one, depth - 1) for one in sample[:8])
    text = repr(sample)
    return f"{kind} {text if len(text) < 80 else text[:77] + '...'}"
