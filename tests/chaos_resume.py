"""A training that is killed again and again, and goes on from its last checkpoint: `make chaos` runs two minutes of it.

The batches of all its lives together must be those of one undisturbed run, to the byte.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIGURATIONS = (
    {"num_workers": 2},
    {"num_workers": 0},
    {"num_workers": 3, "persistent_workers": True},
    {"num_workers": 2, "rng": "sample"},
    {"num_workers": "auto"},
    {"num_workers": 2, "stream": True},
)
EPOCHS = 3


def train(folder: Path, options: dict) -> None:
    """One life of a training: it goes on from the checkpoint, if there is one."""
    import torch
    from torch.utils.data import Dataset, IterableDataset, get_worker_info

    import unjam

    class Noisy(Dataset):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, index: int) -> tuple[int, float, float]:
            time.sleep(0.002)
            return index, random.random(), torch.rand(()).item()

    class Stream(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            for index in range(info.id, 400, info.num_workers):
                time.sleep(0.002)
                yield index, random.random(), torch.rand(()).item()

    torch.manual_seed(0)
    random.seed(0)
    options = dict(options)
    streams = options.pop("stream", False)
    loader = unjam.DataLoader(
        Stream() if streams else Noisy(),
        batch_size=4,
        shuffle=None if streams else True,
        multiprocessing_context="fork" if options["num_workers"] else None,
        **options,
    )
    saved, first, seen = folder / "saved", 0, []
    if saved.exists():
        known = json.loads(saved.read_text())
        loader.load_state_dict(known["loader"])
        first, seen = known["epoch"], known["seen"]
    for epoch in range(first, EPOCHS):
        for batch in loader:
            seen.append([one.tolist() for one in batch])
            (folder / "new").write_text(json.dumps({"loader": loader.state_dict(), "seen": seen, "epoch": epoch}))
            os.replace(folder / "new", saved)
    (folder / "all").write_text(json.dumps(seen))


def run(seconds: float, seed: int) -> int:
    dice, until, kills, rounds = random.Random(seed), time.monotonic() + seconds, 0, 0
    while time.monotonic() < until or not rounds:
        options = CONFIGURATIONS[rounds % len(CONFIGURATIONS)]
        with tempfile.TemporaryDirectory() as place:
            whole, parts = Path(place, "whole"), Path(place, "parts")
            for folder in (whole, parts):
                folder.mkdir()
            subprocess.run(_command(whole, options), check=True, timeout=300)
            while not (parts / "all").exists():
                process = subprocess.Popen(_command(parts, options))
                before = _age(parts)
                while process.poll() is None and _age(parts) == before:
                    time.sleep(0.01)  # it imports torch
                try:
                    code = process.wait(dice.uniform(0.0, 1.0))
                    assert code == 0, f"the training ended with {code}"
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
                    kills += 1
            assert (whole / "all").read_text() == (parts / "all").read_text(), f"{options}: the batches differ"
        rounds += 1
        print(f"{options}: the same, after {kills} kills in all", flush=True)
    return kills


def _age(folder: Path) -> float:
    return (folder / "saved").stat().st_mtime if (folder / "saved").exists() else 0.0


def _command(folder: Path, options: dict) -> list[str]:
    return [sys.executable, "-W", "ignore", __file__, "--train", str(folder), json.dumps(options)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", nargs=2)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.train:
        train(Path(given.train[0]), json.loads(given.train[1]))
    else:
        run(given.seconds, given.seed)
