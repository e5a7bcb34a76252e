"""Looks for wrong bytes on an accelerator: poisoned slots, slow streams, batches kept or dropped at once. `make device` runs it.

Every byte of every batch is checked on the device. It needs an accelerator; tests/test_device.py has the logic without one.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import time

os.environ["UNJAM_POISON"] = "1"

import psutil
import torch
from torch.utils.data import Dataset

import unjam


class Rows(Dataset):
    """Sample n: all bytes are a hash of n, and n itself."""

    def __init__(self, length: int, size: int, extra: int = 0) -> None:
        self.length, self.size, self.extra = length, size, extra

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        data = torch.full((self.size,), (index * 7 + 3) % 251, dtype=torch.uint8)
        small = {f"s{n}": torch.full((n + 1,), index + n, dtype=torch.int64) for n in range(self.extra)}
        return {"data": data, "index": index, **small}


def wrong(batch: dict, bad: torch.Tensor) -> None:
    """Count wrong bytes, on the device and on the current stream."""
    want = ((batch["index"] * 7 + 3) % 251).to(torch.uint8).unsqueeze(1)
    bad += (batch["data"] != want).sum()
    for name, values in batch.items():
        if name.startswith("s"):
            bad += (values != (batch["index"] + int(name[1:])).unsqueeze(1)).sum()


def epoch(dice: random.Random, device: str) -> tuple[str, int, int]:
    size = dice.choice([200, 5_000, 60_000, 400_000])
    workers = dice.choice([0, 1, 2, 4])
    options = {
        "batch_size": dice.choice([1, 4, 16]),
        "shuffle": True,
        "persistent_workers": workers > 0 and dice.random() < 0.5,
        "in_order": dice.random() < 0.7,
        "on_device": (lambda batch: {**batch, "data": batch["data"] + 0}) if dice.random() < 0.3 else None,
    }
    data = Rows(dice.choice([50, 300]), size, extra=dice.choice([0, 0, 12]))
    loader = unjam.DataLoader(data, num_workers=workers, device=device, **options)
    habit = dice.choice(["drop", "keep", "other stream", "slow stream", "break", "kill"])
    bad = torch.zeros((), dtype=torch.int64, device=device)
    kept, seen, other = [], 0, torch.cuda.Stream()
    blocker = torch.randn(3000, 3000, device=device)
    for _ in range(2):
        for number, batch in enumerate(loader):
            seen += 1
            if habit == "slow stream" and number % 5 == 0:
                for _ in range(10):
                    torch.mm(blocker, blocker)
            if habit == "other stream":
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    wrong(batch, bad)
                    for value in batch.values():
                        value.record_stream(other)
                torch.cuda.current_stream().wait_stream(other)
            else:
                wrong(batch, bad)
            if habit == "keep" and len(kept) < 40:
                kept.append(batch)
            if habit == "kill" and workers and number == 3:
                children = psutil.Process().children(recursive=True)  # a worker, or the fork server
                os.kill(dice.choice(children).pid, signal.SIGKILL)
            if habit == "break" and number == 7:
                break
    for batch in kept:
        wrong(batch, bad)
    words = f"{size} bytes, {workers} workers, {habit}, {options['batch_size']} a batch"
    found = int(bad)
    copies = loader.statistics().copies
    assert copies is not None
    assert copies.batches == seen
    return words, seen, found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    dice, until, rounds, batches = random.Random(given.seed), time.monotonic() + given.seconds, 0, 0
    while time.monotonic() < until:
        words, seen, found = epoch(dice, given.device)
        rounds, batches = rounds + 1, batches + seen
        if found:
            print(f"seed {given.seed}, round {rounds}: {found} wrong values ({words})")
            return 1
    gc.collect()
    left = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    print(f"{rounds} loaders, {batches} batches, every byte right; {len(left)} processes left (the fork server is one)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
