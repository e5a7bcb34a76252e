"""Samples do not fit together into a batch.

What happened: a batch could not be made: a sample is None, or has a different shape, different keys
or a different length than the others.

Why: a grey image among coloured ones, a text of another length, a code path of the dataset that
returns nothing, a missing annotation. torch's message names the collate function and never the
sample.

How to confirm: compare the named sample with another one.

How to fix: make samples alike (pad, crop, convert), or give the loader a `collate_fn` that can
handle them. For None: return a sample on every code path, or raise.

Limits: only a custom collate function knows what it can combine; the finding names the shapes that
were seen.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Raised, Trial
from unjam.doctor.mechanisms.trials import bad_samples, basis_without_samples, first_line, names
from unjam.doctor.proof import AGREES
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ515", "samples-do-not-fit", symptom="none")


def detect(case: Case) -> Finding | None:
    """Find samples that are None, or a collate function that failed."""
    trials = [t for t in (case.alone, case.as_is, case.compared) if t is not None]
    nones = [s for t in trials for s in t.samples if s.none]
    hidden = {s.index for t in trials for s in t.samples if s.swallowed}
    if nones and all(s.index in hidden for s in nones):
        return None  # the None replaces a swallowed exception (UJ508)
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
            f"sample {names(s.index for s in nones)} is None: no batch can be made of it"
            if case.loader.default_collate
            else f"sample {names(s.index for s in nones)} is None, and {case.loader.collate} fails with them",
            f"sample {names(s.index for s in nones)} of {case.loader.dataset}",
            (
                f"{len({s.index for s in nones})} of the samples loaded are None",
                *(f"{b.type_name}: {b.message[:120]}" for b in failed[:1]),
            ),
            basis_without_samples(case, (s.index for s in nones)),
            f"return a sample on every way through {case.loader.dataset}, or leave such samples out of its indices beforehand"
            + (
                ""
                if case.loader.default_collate
                else f"; {case.loader.collate} leaves them out, and may have none left"
            ),
            case.loader.dataset_place,
        )
    first = failed[0]
    lost = _lost_key(first, shapes)
    if lost:
        return Finding(
            RULE,
            f"the samples of {case.loader.dataset} have {lost}, but it is gone when they are collated: {case.loader.collate} drops it",
            case.loader.collate,
            (
                f"{first.type_name}: {first_line(first)[:160]}",
                f"a sample as the dataset returns it: {next(iter(shapes))[:160]}",
                *((f"raised at {quoted(first.place)}",) if first.place else ()),
            ),
            AGREES,
            f"let {case.loader.collate} pass {lost} on (transformers' Trainer keeps only what forward() names: remove_unused_columns=False)",
            first.place or case.loader.dataset_place,
        )
    seen = [f"sample {index}: {shape[:160]}" for shape, index in list(shapes.items())[:4]]
    odd = list(shapes.values())[1] if len(shapes) > 1 else ""
    return Finding(
        RULE,
        f"samples do not fit together: {case.loader.collate} raises {first.type_name}"
        + (f"; sample {odd} is unlike the first" if odd else ""),
        f"sample {odd}" if odd else case.loader.collate,
        (
            f"{first.type_name}: {first_line(first)[:160]}",
            *seen,
            *((f"raised at {quoted(first.place)}",) if first.place else ()),
        ),
        AGREES,
        f"make the samples of {case.loader.dataset} alike (pad, crop, convert), or give the loader a collate_fn that can handle them",
        first.place or case.loader.dataset_place,
    )


def _lost_key(failure: Raised, shapes: dict[str, str]) -> str:
    """The key that collating did not find, if every sample has it as the dataset returns it."""
    key = first_line(failure).removeprefix("KeyError: ").strip()
    is_key = failure.type_name == "KeyError" and len(key) > 2 and key[0] == key[-1] == "'"
    return key if is_key and shapes and all(f"[{key}]:" in shape for shape in shapes) else ""


def _shapes(trial: Trial) -> dict[str, str]:
    """Return the shapes that were seen, each with the index of its first sample."""
    found: dict[str, str] = {}
    for sample in trial.samples:
        if sample.shape:
            found.setdefault(sample.shape, sample.index)
    return found
