"""The cost of an epoch apart from its batches: four workers, 64 tiny batches, repeated epochs."""

from __future__ import annotations

import argparse

import torch
import torch.utils.data

import unjam
from harness import interleave, table, timed, verdict


class Tiny(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.tensor(index)


def epochs(loader, count):
    """Seconds per epoch, without the first one, which includes one-time starts."""
    list(loader)
    return timed(lambda: [list(loader) for _ in range(count)]) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for persistent in (False, True):
        options = dict(batch_size=4, num_workers=4, persistent_workers=persistent)
        took = interleave(
            {
                "torch": lambda: epochs(torch.utils.data.DataLoader(Tiny(), **options), 5),
                "unjam": lambda: epochs(unjam.DataLoader(Tiny(), **options), 5),
            },
            arguments.rounds,
        )
        ratio = verdict(took["torch"] / took["unjam"], 1.0)
        name = "persistent workers" if persistent else "new workers each epoch"
        rows.append([name, f"{took['torch'] * 1e3:.1f}", f"{took['unjam'] * 1e3:.1f}", ratio])
    table("Time per epoch, 4 workers, 64 tiny batches", ["", "torch (fork) ms", "unjam ms", "torch / unjam"], rows)


if __name__ == "__main__":
    main()
