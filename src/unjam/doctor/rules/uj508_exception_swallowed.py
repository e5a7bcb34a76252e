"""The dataset swallows an exception and returns a substitute for the sample.

What happened: an exception was raised and caught while a sample was loaded, and the code continued
with None, a default, or another sample. The batch then fails for an unrelated reason, or training
continues with wrong data.

Why: `except Exception: return None` hides the failure where it happens. It appears later, at a
place that does not explain it.

How to confirm: the exception was observed while the sample was loaded, and a sample was still
returned.

How to fix: do not catch the exception. To skip bad samples, use something that counts them, such as
unjam's `on_error="skip"` with `max_errors=`.

Limits: handlers that did not run during the trials are reported as a note; handlers for one kind of
error that compute another value are not reported.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import keeps_record, quoted
from unjam.doctor.facts.trial import Place
from unjam.doctor.mechanisms.swallowed import RetriesWithoutEnd
from unjam.doctor.proof import OBSERVED, SUGGESTED, Severity
from unjam.doctor.queries.trials import names
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count

RULE = Rule("UJ508", "exception-swallowed", symptom="none")


def words(one: RetriesWithoutEnd) -> Words:
    """Say which exception is caught in an endless loop."""
    return Words(
        f"every sample fails, and the handler keeps trying the next one forever: {one.root}",
        f"fix what raises at {one.place}; and let the handler give up after a few samples, with the first exception",
    )


def detect(case: Case) -> Finding | None:
    """Find exceptions that were raised and swallowed, or handlers that would swallow them."""
    alone = case.alone
    hidden = [s for s in alone.samples if s.swallowed] if alone else []
    if hidden and alone is not None:
        error, file, line, at, done = hidden[0].swallowed.rsplit("|", 4)
        place = Place(file, int(at))
        same = [s for s in hidden if s.swallowed.endswith(f"|{at}|{done}")]
        return Finding(
            RULE,
            f"{count(len(same), 'sample')} of {len(alone.samples):,} failed silently: the handler at {place} {done}",
            f"sample {names(s.index for s in same)} at {place}",
            (
                f"sample {hidden[0].index}: {error} at {Place(file, int(line))}",
                f"caught at {quoted(place)}, which {done}",
                f"{count(sum(s.none for s in alone.samples), 'sample')} returned as None"
                if any(s.none for s in alone.samples)
                else "",
            ),
            OBSERVED,
            f"do not catch the exception at {place}; to skip and count bad samples, use unjam's on_error='skip', max_errors=0.01",
            place,
            severity=Severity.NOTE if _is_intended(case, place, len(same)) else None,
        )
    if not case.reading.excepts:
        return None
    place, caught, done = case.reading.excepts[0]
    return Finding(
        RULE,
        f"the handler at {place} would hide a failure: it catches {caught} and {done}",
        f"{place}",
        (f"{quoted(place)}", "it did not run for the samples that were loaded"),
        SUGGESTED,
        f"do not catch the exception at {place}",
        place,
        severity=Severity.NOTE,
    )


BROAD = ("Exception", "BaseException", "everything", "anything")
FEW = 0.2


def _is_intended(case: Case, place: Place, hidden: int) -> bool:
    """Whether a handler names the exceptions that it expects, and either few samples raise them or it records them."""
    caught = next((words for at, words, _ in case.reading.excepts if at == place), "everything")
    loaded = len(case.alone.samples) if case.alone is not None else 0
    if any(one in caught for one in BROAD) or any(t.bad for t in case.trials):
        return False
    return hidden < FEW * loaded or keeps_record(place)
