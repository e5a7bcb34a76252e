"""A weighted sampler's weights have no effect: it draws every sample exactly once.

What happened: the sampler has different weights, and each epoch draws every sample once.

Why: `replacement=False` with `num_samples=len(dataset)` yields a permutation. Weights then only
change the order.

How to confirm: count how often each index is drawn in an epoch.

How to fix: use `replacement=True`, or a smaller `num_samples`.

Limits: weights with a purpose other than drawing are also reported if the sampler calls them
`weights`.
"""

from __future__ import annotations

from collections import Counter

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.facts.trial import Place
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ530", "weights-without-effect", Severity.WARNING)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Count how often a weighted sampler draws each index."""
    for loader in watched.loaders:
        weights, length = loader.description.weights, loader.description.length
        if weights and length and not loader.iterable and int(weights) < int(length):
            return _too_few(loader, int(weights), int(length))
        epoch = next((one for one in loader.complete_epochs if len(one.indices) == one.draws), None)
        if not loader.description.weighted or epoch is None or loader.description.length != epoch.draws:
            continue
        if epoch.draws < 8 or set(Counter(epoch.indices).values()) != {1}:
            continue
        sampler = loader.description.sampler
        created = _created_at(loader)
        return Finding(
            RULE,
            f"the weights of {sampler} have no effect: every epoch draws each of the {epoch.draws:,} samples once",
            f"{sampler}(replacement=False)" if not loader.description.replacement else sampler,
            (
                f"epoch 1 of {loader.name}: {epoch.draws:,} indices, all different; the weights differ",
                *line_evidence("created at", created),
            ),
            OBSERVED,
            "use replacement=True to draw by weight, or draw fewer samples than the dataset has",
            created or loader.made or loader.place,
        )
    return None


def _too_few(loader: WatchedLoader, weights: int, length: int) -> Finding:
    """Report a sampler that has weights for only some of the samples: it never draws the others."""
    sampler = loader.description.sampler
    created = _created_at(loader, *loader.description.files)
    return Finding(
        RULE,
        f"{sampler} has {weights:,} weights for {length:,} samples: it draws only the first {weights:,}",
        f"the weights of {sampler}" + (f" at {created}" if created else ""),
        (
            f"{loader.name} has {length:,} samples",
            *line_evidence("created at", created),
        ),
        OBSERVED,
        "give it a weight for each sample, not for each class: weights[labels]",
        created or loader.made or loader.place,
        severity=Severity.ERROR,
    )


def _created_at(loader: WatchedLoader, *more: str) -> Place | None:
    """Return the line that creates the sampler, in the files around the loader or in `more`."""
    files = {place.file for place in (loader.made, loader.place) if place is not None} | set(more)
    return next(
        (place for file in sorted(files) for place in attribute_calls(file, (loader.description.sampler,))), None
    )
