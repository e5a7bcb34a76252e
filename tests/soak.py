"""Long runs of small things: `make soak`. Memory and descriptors stay flat.

200,000 small batches, and 20,000 epochs: on workers that stay, on new workers each time, with loops that are left early,
without workers, and with samples that fail.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from torch.utils.data import Dataset

from chaos import Footprint
from unjam import DataLoader

GROWTH = 24 << 20


class Small(Dataset):
    def __init__(self, length: int, bad: int | None = None) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError("bad")
        return index


def batches(count: int) -> None:
    loader = DataLoader(Small(count * 4), batch_size=4, num_workers=2)
    assert sum(1 for _ in loader) == count


def epochs(count: int, **options) -> None:
    bad = 3 if "on_error" in options else None
    loader = DataLoader(Small(24, bad), batch_size=4, **options)
    for number in range(count):
        for at, _ in enumerate(loader):
            if number % 3 == 2 and at == 1:
                break


PARTS = {
    "200,000 batches": lambda part: batches(int(200_000 * part)),
    "10,000 epochs, workers stay": lambda part: epochs(int(10_000 * part), num_workers=2, persistent_workers=True),
    "3,000 epochs, new workers": lambda part: epochs(int(3_000 * part), num_workers=1),
    "1,000 epochs, forked workers": lambda part: epochs(
        int(1_000 * part), num_workers=1, multiprocessing_context="fork"
    ),
    "5,000 epochs, no workers": lambda part: epochs(int(5_000 * part)),
    "1,000 epochs, a sample fails": lambda part: epochs(int(1_000 * part), num_workers=1, on_error="skip"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of the whole length")
    options = parser.parse_args()
    logging.getLogger("unjam").setLevel(logging.ERROR)
    for name, run in PARTS.items():
        run(0.02 * options.part)
        before, begun = Footprint.now(), time.monotonic()
        run(options.part)
        after = Footprint.now()
        print(
            f"{name:<30} {time.monotonic() - begun:7.1f} s   memory {before.memory >> 20} -> {after.memory >> 20} MB   "
            f"descriptors {before.descriptors} -> {after.descriptors}",
            flush=True,
        )
        assert after.memory <= before.memory + GROWTH, "memory grows"
        assert after.descriptors <= before.descriptors, "descriptors grow"
        assert after.children <= before.children, "children are left"
        assert after.threads <= before.threads, "threads are left"


if __name__ == "__main__":
    sys.exit(main())
