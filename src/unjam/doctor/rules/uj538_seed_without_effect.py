"""Samples seed one random generator and draw from another.

What happened: loading a sample sets a seed, but the random numbers that it uses come from another generator: `random.seed(s)`
before transforms that draw from torch, for example. Things that should be the same (an image and its mask, a sample in every
epoch) differ.

Why: `random`, `numpy.random` and torch each have their own generator, and each library draws from one of them.

How to confirm: load one sample twice: the results differ, although both times the same seed is set.

How to fix: seed the generator that the transforms use, or better, draw the parameters once and apply them to both.

Limits: only the three global generators are examined; a program that seeds all of them is correct.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.random_draws import SeedNotDrawnFrom
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ538", "seed-without-effect")
_SEEDS = {"random": "random.seed", "numpy.random": "numpy.random.seed", "torch": "torch.manual_seed"}


def words(one: SeedNotDrawnFrom) -> Words:
    """Say which generator is seeded, and which one is used."""
    right = " and ".join(_SEEDS.get(name, f"a seed of {name}") for name in one.drawn)
    return Words(
        f"samples of {one.loader} seed {one.seeded} but draw from {', '.join(one.drawn)}: the seed has no effect",
        f"use {right} instead of {_SEEDS[one.seeded]}, or draw the parameters once and apply them to everything that belongs together",
    )
