"""The cost of timing: torch's loader, which times nothing, unjam's, and unjam's with `profile=True`.

Samples compute for 1 ms and for 0.1 ms, without workers and with two. A ratio of 1.00 is torch; the goal for the timing that is always
on is at most 1.01 with samples of 1 ms.
"""

from __future__ import annotations

import time

import torch

import unjam
from harness import interleave, table, timed, verdict


class Spin:
    """A transform that computes for a given time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, index: int) -> int:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass
        return index


class Samples(torch.utils.data.Dataset):
    def __init__(self, seconds: float, length: int) -> None:
        self.transform, self.length = Spin(seconds), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self.transform(index)


CONTENDERS = {
    "torch": (torch.utils.data.DataLoader, {}),
    "unjam": (unjam.DataLoader, {}),
    "unjam, profile": (unjam.DataLoader, {"profile": True}),
}


def main() -> None:
    """Time whole epochs, interleaved, with persistent workers."""
    rows = []
    for workers in (0, 2):
        for seconds, length in ((0.001, 400), (0.0001, 3000)):
            loaders = {
                name: kind(Samples(seconds, length), 20, num_workers=workers, persistent_workers=workers > 0, **options)
                for name, (kind, options) in CONTENDERS.items()
            }
            runs = {name: (lambda one=one: timed(lambda: [None for _ in one])) for name, one in loaders.items()}
            for run in runs.values():
                run()
            took = interleave(runs, 9)
            ratios = [took[name] / took["torch"] for name in CONTENDERS]
            goal = verdict(ratios[1], 1.01, at_least=False) if seconds == 0.001 else f"{ratios[1]:.3f}"
            rows.append(
                [
                    f"{seconds * 1000:g} ms, {workers or 'no'} workers",
                    f"{took['torch']:.3f} s",
                    f"{ratios[1]:.3f}",
                    f"{ratios[2]:.3f}",
                    goal,
                ]
            )
    table("time of an epoch against torch's", ["samples", "torch", "unjam", "with profile", "goal"], rows)


if __name__ == "__main__":
    main()
