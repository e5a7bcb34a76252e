"""Samples cannot be collated into a batch.

What happened: a batch could not be collated: a sample is None, or has a different shape, different
keys or a different length than the others.

Why: a greyscale image among colour images, a text of another length, a code path of the dataset
that returns nothing, a missing annotation. torch's message names the collate function and never the
sample.

How to confirm: compare the named sample with another one.

How to fix: give all samples the same form (pad, crop, convert), or give the loader a `collate_fn`
that can handle them. For None: return a sample on every code path, or raise an exception.

Limits: only a custom collate function knows what it can combine; the finding names the shapes that
were observed.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Raised, Trial
from unjam.doctor.proof import AGREES
from unjam.doctor.queries.trials import bad_samples, basis_without_samples, first_line, names
from unjam.doctor.rules.rule import Finding, Rule, line_evidence

RULE = Rule("UJ515", "samples-do-not-fit", symptom="none")


def detect(case: Case) -> Finding | None:
    """Find samples that are None, or a collate function that failed."""
    trials = [t for t in (case.alone, case.as_is, case.compared) if t is not None]
    nones = [s for t in trials for s in t.samples if s.none]
    hidden = {s.index for t in trials for s in t.samples if s.swallowed}
    if nones and all(s.index in hidden for s in nones):
        return None  # UJ508: the None replaces a swallowed exception
    failed = [b for t in trials for b in bad_samples(t, "collate")]
    if (
        case.alone is not None
        and case.alone.fine
        and not bad_samples(case.alone, "collate")
        and len(_shapes(case.alone)) < 2
    ):
        failed = []  # the samples fit without workers; the failure has another cause
    if nones and not failed and not case.loader.default_collate:
        return None  # its collate function can handle None
    if not nones and not failed:
        return None
    shapes: dict[str, str] = {}
    for trial in trials:
        shapes = {**_shapes(trial), **shapes}
    if nones:
        return Finding(
            RULE,
            f"sample {names(s.index for s in nones)} is None and cannot be collated"
            if case.loader.default_collate
            else f"sample {names(s.index for s in nones)} is None, and {case.loader.collate} cannot handle it",
            f"sample {names(s.index for s in nones)} of {case.loader.dataset}",
            (
                f"samples that are None, of those loaded: {len({s.index for s in nones})}",
                *(f"{b.type_name}: {b.message[:120]}" for b in failed[:1]),
            ),
            basis_without_samples(case, (s.index for s in nones)),
            f"return a sample on every code path of {case.loader.dataset}, or remove such samples from its indices beforehand"
            + (
                ""
                if case.loader.default_collate
                else f"; {case.loader.collate} skips them, and a batch may have none left"
            ),
            case.loader.dataset_place,
        )
    first = failed[0]
    lost = _lost_key(first, shapes)
    if lost:
        return Finding(
            RULE,
            f"the samples of {case.loader.dataset} have {lost}, but {case.loader.collate} drops it before they are collated",
            case.loader.collate,
            (
                f"{first.type_name}: {first_line(first)[:160]}",
                f"a sample as the dataset returns it: {next(iter(shapes))[:160]}",
                *line_evidence("raised at", first.place),
            ),
            AGREES,
            f"let {case.loader.collate} keep {lost} (transformers' Trainer drops what forward() does not name: remove_unused_columns=False)",
            first.place or case.loader.dataset_place,
        )
    seen = [f"sample {index}: {shape[:160]}" for shape, index in list(shapes.items())[:4]]
    odd = list(shapes.values())[1] if len(shapes) > 1 else ""
    return Finding(
        RULE,
        f"samples cannot be collated: {case.loader.collate} raises {first.type_name}"
        + (f"; sample {odd} differs from the first" if odd else ""),
        f"sample {odd}" if odd else case.loader.collate,
        (
            f"{first.type_name}: {first_line(first)[:160]}",
            *seen,
            *line_evidence("raised at", first.place),
        ),
        AGREES,
        f"give the samples of {case.loader.dataset} the same form (pad, crop, convert), or give the loader a collate_fn that can handle them",
        first.place or case.loader.dataset_place,
    )


def _lost_key(failure: Raised, shapes: dict[str, str]) -> str:
    """Return the key that the collate function did not find, although every sample of the dataset has it."""
    key = first_line(failure).removeprefix("KeyError: ").strip()
    is_key = failure.type_name == "KeyError" and len(key) > 2 and key[0] == key[-1] == "'"
    return key if is_key and shapes and all(f"[{key}]:" in shape for shape in shapes) else ""


def _shapes(trial: Trial) -> dict[str, str]:
    """Return the observed shapes, each with the index of its first sample."""
    found: dict[str, str] = {}
    for sample in trial.samples:
        if sample.shape:
            found.setdefault(sample.shape, sample.index)
    return found
