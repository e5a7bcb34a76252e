"""Random draws: from which generators samples draw, and which of them the program seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Place
from unjam.units import count

FEWEST, MOST_OF = 12, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedNotDrawnFrom(Explanation):
    """Samples seed one generator but draw from another, which they do not seed."""

    seeded: str
    drawn: tuple[str, ...]
    loader: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a seed that every sample sets but that does not affect its random numbers."""
    for loader in known.watched.loaders:
        yield from _of_loader(loader)


def _of_loader(loader: WatchedLoader) -> Iterator[Explanation]:
    samples = [one for epoch in loader.epochs for one in epoch.samples]
    idle = [one for one in samples if one.idle and one.drew and not set(one.drew) & set(one.seeded)]
    if len(idle) < FEWEST or len(idle) < MOST_OF * len(samples):
        return
    lines: Counter[tuple[str, Place]] = Counter(seed for one in idle for seed in one.idle.items())
    (seeded, place), _ = lines.most_common(1)[0]
    drawn = tuple(sorted({name for one in idle for name in one.drew}))
    yield SeedNotDrawnFrom(
        culprit=f"the seed of {seeded} at {place}",
        place=place,
        because=(
            f"{count(len(idle), 'sample')} of {len(samples):,} seed {seeded} at {quoted(place)} but then draw nothing from it",
            f"their random numbers come from {', '.join(drawn)}, which the sample does not seed",
        ),
        seeded=seeded,
        drawn=drawn,
        loader=loader.name,
    )
