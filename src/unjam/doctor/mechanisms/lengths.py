"""Lengths: a dataset changed its length after it was concatenated, and a last batch that is too small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import stored
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import AGREES, OBSERVED
from unjam.doctor.queries import failures


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEarlier(Explanation):
    """A member of a concatenation, or the dataset of a subset (culprit), has changed its length since."""

    then: int
    now: int
    failed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatchSmaller(Explanation):
    """The training step fails with the last batch of an epoch, which has fewer samples than the others."""

    loader: str
    rest: int
    size: int
    failed: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a dataset that changed its length after it was concatenated, and a last batch that is too small."""
    yield from _last_batch(known)
    failure = failures.fatal_failure(known)
    for loader in known.watched.loaders:
        stale = loader.description.stale
        mine = failure if failure is not None and failure.loader == loader.number and failure.index else None
        if not stale or (mine is None and known.watched.outcome == "failed"):
            continue
        member, then, now = stale[0]
        place = _put_together(loader, member)
        failed = failures.failure_words(mine) if mine is not None else ""
        yield CountedEarlier(
            culprit=member,
            place=place or loader.made or loader.place,
            because=(
                f"{failures.where_failed(mine)} fails: {failed}" if mine is not None else "",
                f"{member} had {then:,} samples when it was concatenated or divided, and has {now:,} now",
                f"concatenated or divided at {quoted(place)}" if place is not None else "",
                "indices are still computed from the earlier length",
            ),
            basis=AGREES if mine is not None else OBSERVED,
            then=then,
            now=now,
            failed=failed,
            accounts_for=("raised",) if mine is not None else ("lost",),
        )
        return


def _put_together(loader: WatchedLoader, member: str) -> Place | None:
    """The line that set the attribute with the concatenation."""
    if (known := loader.description.composed.get(member.rpartition(".")[0])) is not None:
        return known
    owner = member.rpartition(".")[0].rpartition(".")[2]
    return next((at for file in loader.source_files for at in stored(file, owner)), None) if owner else None


def _last_batch(known: Knowledge) -> Iterator[Explanation]:
    """Find a program that failed outside of its loaders while it used the last, smaller batch of an epoch."""
    failure = failures.fatal_failure(known)
    if known.watched.outcome != "failed" or failure is None or failure.stage != "end":
        return
    for loader in known.watched.loaders:
        length, size = loader.description.length or 0, loader.description.batch_size or 0
        epoch = loader.epochs[-1] if loader.epochs else None
        rest = length % size if size else 0
        if epoch is None or not rest or loader.description.drop_last or loader.iterable or epoch.done:
            continue
        if epoch.expected is None or epoch.batches != epoch.expected or epoch.expected < 2:
            continue
        yield LastBatchSmaller(
            culprit=f"the last batch of {loader.name}",
            place=loader.made or loader.place,
            because=(
                failures.failure_words(failure),
                f"raised at {quoted(failure.place)}" if failure.place is not None else "",
                f"the {epoch.batches - 1:,} earlier batches of {size} samples succeeded; {length:,} samples leave {rest} for the last batch",
            ),
            loader=loader.name,
            rest=rest,
            size=size,
            failed=failures.failure_words(failure)[:160],
            accounts_for=("raised",),
        )
        return
