"""Any loader, stopped anywhere and any number of times, goes on as if it had not been: drawn at random.

`UNJAM_EXAMPLES=2000 pytest tests/test_resume_property.py` tries more of them.
"""

from __future__ import annotations

import itertools
import json
import os
import random

import pytest

from test_resume import SAMPLERS, Noisy, Numbers, Plain, Stateful, StatefulIterator, maker, plain, seed
from unjam import DataLoader

EXAMPLES = int(os.environ.get("UNJAM_EXAMPLES", "20"))
EPOCHS = 3


class Failing(Noisy):
    """Some samples fail, after they have drawn random numbers."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index % 9 == 4:
            raise ValueError(index)
        return sample


def maps(dice):
    kind = dice.choice([Noisy, Plain, Failing])
    sampler = dice.choice([name for name in SAMPLERS if name != "one by one"])
    workers = [dice.choice([0, 0, 1, 2, 3]) for _ in range(4)]
    sampled = dice.random() < 0.5
    if kind is not Plain and not sampled:
        workers = workers[:1] * 4  # random numbers are the workers' own
    options = {"rng": "sample" if sampled else "worker", "on_error": "skip" if kind is Failing else "raise"}
    if sampler != "batches":
        options["batch_size"] = dice.randint(1, 7)
        options["drop_last"] = dice.random() < 0.5
    # with persistent workers torch takes other numbers for the next epoch
    prefetch, persistent = dice.randint(1, 3), dice.random() < 0.5 and all(workers)
    data = kind()

    def made(life):
        own = {"prefetch_factor": prefetch, "persistent_workers": persistent} if workers[life] else {}
        return maker(data, sampler, workers[life], **options, **own)()

    return made, f"{kind.__name__}, {sampler}, workers {workers}, {options}"


def streams(dice):
    kind = dice.choice([Numbers, Stateful, StatefulIterator])
    workers = dice.choice([0, 1, 2, 3])
    options = {
        "batch_size": dice.randint(1, 7),
        "drop_last": dice.random() < 0.5,
        "rng": dice.choice(["worker", "sample"]),
        "snapshot_every_n_steps": dice.randint(1, 4),
    }
    persistent = dice.random() < 0.5

    def made(life):
        del life
        own = {"persistent_workers": persistent, "multiprocessing_context": "fork"} if workers else {}
        return DataLoader(kind(), num_workers=workers, **options, **own)

    return made, f"{kind.__name__}, {workers} workers, {options}"


@pytest.mark.parametrize("number", range(EXAMPLES))
def test_interrupted_runs_together_equal_one_run(number):
    dice = random.Random(number)
    made, words = dice.choice([maps, maps, streams])(dice)
    stops = [dice.randint(0, 25) for _ in range(dice.randint(1, 3))]
    seed()
    loader = made(0)
    whole = [plain(batch) for _ in range(EPOCHS) for batch in loader]
    seed()
    assert _in_lives(made, stops) == whole, (words, stops)


def _in_lives(made, stops):
    """The batches of several loaders, each of which goes on after so many batches of the one before."""
    got, epoch, state = [], 0, None
    for life, stop in enumerate([*stops, None]):
        loader = made(life)
        if state is not None:
            seed(100 + life)  # a new process has other generators
            loader.load_state_dict(state)
        left = stop
        while epoch < EPOCHS:
            iterator = iter(loader)
            taken = [plain(batch) for batch in itertools.islice(iterator, left)]
            got += taken
            left = None if left is None else left - len(taken)
            if left == 0:
                break  # it may be the end of the epoch, which the loader does not know yet
            epoch += 1
        state = json.loads(json.dumps(loader.state_dict()))
        if epoch >= EPOCHS:
            break
    return got
