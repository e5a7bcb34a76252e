"""A weighted sampler draws every sample exactly once: its weights do nothing.

What happened: the sampler has weights that differ, and each epoch draws every sample once.

Why: `replacement=False` with `num_samples=len(dataset)` is a permutation. Weights then only change
the order.

How to confirm: count how often each index is drawn in an epoch.

How to fix: `replacement=True`, or a smaller `num_samples`.

Limits: weights that are used for something else than drawing are reported, too, if the sampler
calls them `weights`.
"""

from __future__ import annotations

from collections import Counter

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import attribute_calls
from unjam.doctor.proof import OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ530", "weights-without-effect", Severity.WARNING)


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Count how often a weighted sampler draws each index."""
    del cases
    for loader in watched.loaders:
        weights, length = loader.description.weights, loader.description.length
        if weights and length and not loader.iterable and int(weights) < int(length):
            return [_too_few(loader, int(weights), int(length))]
        epoch = next((one for one in loader.complete_epochs if len(one.indices) == one.draws), None)
        if not loader.description.weighted or epoch is None or loader.description.length != epoch.draws:
            continue
        if epoch.draws < 8 or set(Counter(epoch.indices).values()) != {1}:
            continue
        sampler = loader.description.sampler
        files = {place.file for place in (loader.made, loader.place) if place is not None}
        made = next((place for file in sorted(files) for place in attribute_calls(file, (sampler,))), None)
        return [
            Finding(
                RULE,
                f"the weights of {sampler} do nothing: every epoch draws each of the {epoch.draws:,} samples once",
                f"{sampler}(replacement=False)" if not loader.description.replacement else sampler,
                (
                    f"epoch 1 of {loader.name}: {epoch.draws:,} indices, all different; the weights differ",
                    *((f"made at {quoted(made)}",) if made else ()),
                ),
                OBSERVED,
                "replacement=True draws by weight; or draw fewer samples than there are",
                made or loader.made or loader.place,
            )
        ]
    return []


def _too_few(loader: WatchedLoader, weights: int, length: int) -> Finding:
    """A sampler that has weights for some of the samples only: the others are never drawn."""
    sampler = loader.description.sampler
    files = {place.file for place in (loader.made, loader.place) if place is not None} | set(loader.description.files)
    made = next((place for file in sorted(files) for place in attribute_calls(file, (sampler,))), None)
    return Finding(
        RULE,
        f"{sampler} has {weights:,} weights for {length:,} samples: it draws only the first {weights:,}",
        f"the weights of {sampler}" + (f" at {made}" if made else ""),
        (
            f"{loader.name} has {length:,} samples",
            *((f"made at {quoted(made)}",) if made else ()),
        ),
        OBSERVED,
        "give it a weight for each sample, not for each class: weights[labels]",
        made or loader.made or loader.place,
        severity=Severity.ERROR,
    )
