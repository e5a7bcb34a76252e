"""Twenty strikes of `make chaos`, and a hundredth of `make soak`."""

from __future__ import annotations

import logging

import pytest

import chaos
import soak


def test_random_worker_kills_lose_nothing(caplog):
    caplog.set_level(logging.ERROR, "unjam")
    seen = chaos.run(100, seed=7, strikes=20)
    assert sum(seen["strikes"].values()) >= 20
    assert seen["restarts"] > 4


@pytest.mark.parametrize("name", soak.PARTS)
def test_memory_and_descriptors_stay_flat(name, caplog):
    caplog.set_level(logging.ERROR, "unjam")
    part = soak.PARTS[name]
    part(0.003)
    before = chaos.Footprint.now()
    part(0.006)
    after = chaos.Footprint.now()
    assert after.memory <= before.memory + soak.GROWTH
    assert after.descriptors <= before.descriptors
    assert after.children <= before.children
