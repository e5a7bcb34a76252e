"""A real pipeline: JPEG decoding with Pillow, a random crop, to a tensor. Samples per second with two workers."""

from __future__ import annotations

import argparse
import io
import random

import numpy as np
import torch
import torch.utils.data
from PIL import Image

import unjam
from harness import interleave, table, timed, verdict


class Photos(torch.utils.data.Dataset):
    """JPEG files in memory, so that the disk is not measured."""

    def __init__(self, count):
        random.seed(0)
        smooth = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        self.files = []
        for _ in range(32):
            file = io.BytesIO()
            picture = Image.fromarray(np.roll(smooth, random.randrange(16), 0)).resize(
                (500, 375), Image.Resampling.BICUBIC
            )
            picture.save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index % 32])).convert("RGB")
        left, top = random.randrange(500 - 224), random.randrange(375 - 224)
        image = image.crop((left, top, left + 224, top + 224))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)


def rate(loader_class, dataset, workers):
    """Samples per second in the second epoch with persistent workers."""
    torch.set_num_threads(1)
    loader = loader_class(dataset, batch_size=32, num_workers=workers, persistent_workers=workers > 0)
    if workers:
        list(loader)
    return len(dataset) / timed(lambda: [None for _ in loader])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1600)
    arguments = parser.parse_args()
    dataset = Photos(arguments.samples)
    seen = interleave(
        {
            "one process": lambda: rate(torch.utils.data.DataLoader, dataset, 0),
            "torch, 2 workers": lambda: rate(torch.utils.data.DataLoader, dataset, 2),
            "unjam, 2 workers": lambda: rate(unjam.DataLoader, dataset, 2),
        },
        arguments.rounds,
    )
    best = max(2 * seen["one process"], seen["torch, 2 workers"])
    rows = [[name, f"{value:.0f}", ""] for name, value in seen.items()]
    rows[2][2] = verdict(seen["unjam, 2 workers"] / best, 0.97)
    table("Pipeline", ["", "samples / s", "over the better of torch and twice one process"], rows)


if __name__ == "__main__":
    main()
