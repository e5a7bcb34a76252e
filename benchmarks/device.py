"""Batch throughput to an accelerator: torch pinned, unjam pinned, unjam with `device=`. Needs an accelerator.

Prints GB/s (the median of alternating rounds), the parent's processor time per GB, and how much loading delays a step of 10 ms on the
device.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import Dataset

import unjam
from harness import table

SAMPLE = (3, 224, 224)
SAMPLE_BYTES = 3 * 224 * 224
ROUNDS = 3


class Images(Dataset):
    """Samples that are already in memory, so that only the transfer to the device is measured."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.length = length
        self.images = torch.randint(0, 255, (16, *SAMPLE), dtype=torch.uint8).to(dtype)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % 16], index


def contenders(data: Dataset, batch: int, workers: int) -> dict[str, Callable[[], Iterator[Any]]]:
    """Loaders that deliver batches on the device."""
    common = {"batch_size": batch, "num_workers": workers, "prefetch_factor": 3, "persistent_workers": True}

    def moved(loader: Any) -> Callable[[], Iterator[Any]]:
        return lambda: ((x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)) for x, y in loader)

    straight = unjam.DataLoader(data, device="cuda", **common)
    return {
        "torch pinned": moved(torch.utils.data.DataLoader(data, pin_memory=True, **common)),
        "unjam pinned": moved(unjam.DataLoader(data, pin_memory=True, **common)),
        "unjam device": lambda: iter(straight),
    }


def measure(batches: Iterator[Any], skip: int, step: Callable[[], None] | None) -> tuple[float, float, int]:
    """Seconds, processor seconds of this process, and bytes."""
    for _ in itertools.islice(batches, skip):
        pass
    torch.cuda.synchronize()
    begun, used, count = time.perf_counter(), time.process_time(), 0
    for x, y in batches:
        count += x.nbytes + y.nbytes
        if step is not None:
            step()
    torch.cuda.synchronize()
    return time.perf_counter() - begun, time.process_time() - used, count


def link(size: int) -> float:
    """GB/s of copies from pinned memory."""
    source, target = (
        torch.empty(size, dtype=torch.uint8, pin_memory=True),
        torch.empty(size, dtype=torch.uint8, device="cuda"),
    )
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(20):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return 20 * size / (time.perf_counter() - begun) / 1e9


def step_of(seconds: float) -> tuple[Callable[[], None], float]:
    """Asynchronous work for the device of about this duration, and its measured milliseconds without other load."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(a, a)

    work(10)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work(50)
    torch.cuda.synchronize()
    times = max(1, round(seconds / ((time.perf_counter() - begun) / 50)))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work(60 * times)
    torch.cuda.synchronize()
    return lambda: work(times), (time.perf_counter() - begun) / 60 * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 12])
    parser.add_argument("--batch-mb", type=float, nargs="*", default=[1, 10, 40])
    parser.add_argument("--dtypes", nargs="*", default=["uint8", "float32"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--gb", type=float, default=4.0, help="gigabytes that each measurement loads")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}; the link: {link(40 << 20):.1f} GB/s\n")
    step, alone_ms = step_of(0.010)
    rows = []
    for dtype, megabytes, workers in itertools.product(given.dtypes, given.batch_mb, given.workers):
        kind = getattr(torch, dtype)
        batch = max(1, round(megabytes * 1e6 / (SAMPLE_BYTES * kind.itemsize)))
        number = max(90, min(1500, int(given.gb * 1e9 / (batch * SAMPLE_BYTES * kind.itemsize))))
        loaders = contenders(Images(batch * number, kind), batch, workers)
        alone: dict[str, list[tuple[float, float, int]]] = {name: [] for name in loaders}
        beside: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(given.rounds):
            for name, make in loaders.items():
                alone[name].append(measure(make(), 10, None))
                seconds, _, _ = measure(itertools.islice(make(), 70), 10, step)
                beside[name].append(seconds / 60 * 1e3 - alone_ms)
        del loaders, make
        rate = {name: statistics.median(size / took / 1e9 for took, _, size in seen) for name, seen in alone.items()}
        cost = {name: statistics.median(used / (size / 1e9) for _, used, size in seen) for name, seen in alone.items()}
        for name in alone:
            rows.append(
                [dtype, f"{megabytes:g} MB", str(workers), name, f"{rate[name]:.1f} GB/s", f"{rate[name] / rate['torch pinned']:.1f}",
                 f"{cost[name]:.2f} s/GB", f"{statistics.median(beside[name]):+.1f} ms"]
            )  # fmt: skip
            print(*rows[-1], flush=True)
    print()
    columns = [
        "dtype",
        "batch",
        "workers",
        "loader",
        "alone",
        "× torch",
        "parent's processor",
        "beside a step of 10 ms",
    ]
    table("From workers to the device", columns, rows)


if __name__ == "__main__":
    main()
