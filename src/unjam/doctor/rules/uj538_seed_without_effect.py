"""Samples seed one random generator and draw from another one.

What happened: loading a sample sets a seed, and the random numbers that it uses come from a generator that this does not touch:
`random.seed(s)` before transforms that draw from torch, for example. What was to be the same (an image and its mask, a sample in
every epoch) differs.

Why: `random`, `numpy.random` and torch have generators of their own, and each library draws from one of them.

How to confirm: load one sample twice: with the seed set, the two are different.

How to fix: seed the generator that the transforms use, or better, draw the parameters once and apply them to both.

Limits: the three global generators; a program that seeds all of them is fine.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.mechanisms.random_draws import SeedNotDrawnFrom
from unjam.doctor.rules.rule import Rule

RULE = Rule("UJ538", "seed-without-effect")
NAMES = (SeedNotDrawnFrom,)
_SEEDS = {"random": "random.seed", "numpy.random": "numpy.random.seed", "torch": "torch.manual_seed"}


def words(one: SeedNotDrawnFrom) -> Words:
    """Say which generator is seeded, and which one is used."""
    right = " and ".join(_SEEDS.get(name, f"a seed of {name}") for name in one.drawn)
    return Words(
        f"samples of {one.loader} seed {one.seeded} but draw from {', '.join(one.drawn)}: the seed has no effect",
        f"use {right} in place of {_SEEDS[one.seeded]}, or draw the parameters once and apply them to everything that belongs together",
    )
