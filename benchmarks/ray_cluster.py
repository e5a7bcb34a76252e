"""Samples per second on a Ray cluster: unjam and Ray Data there, and unjam's workers on this machine. Needs `unjam[ray]`.

The cluster is started on this machine: a head and two nodes. Data between nodes goes through sockets, as between machines, but all
nodes share this machine's processors. Measurements start after the first batches; the result is the median of alternating rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")

import ray
import torch
from ray.cluster_utils import Cluster
from torch.utils.data import Dataset

import unjam
from harness import table


class Rows(Dataset):
    """Samples of a given size and duration, as from a file server or a decoder."""

    def __init__(self, length: int, size: int, seconds: float) -> None:
        self.length, self.size, self.seconds = length, size, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((self.size,), index % 251, dtype=torch.uint8)


def ray_data(data: Rows, batch: int, workers: int) -> Iterator[Any]:
    """The same samples loaded by Ray Data: one task or actor per worker."""

    def load(row: dict) -> dict:
        return {"x": data[int(row["id"])].numpy()}

    found = ray.data.range(len(data))
    found = found.map(load, compute=ray.data.TaskPoolStrategy(size=workers))
    yield from (one["x"] for one in found.iter_torch_batches(batch_size=batch, prefetch_batches=2))


def measure(batches: Iterator[Any], skip: int, most: float) -> tuple[float, float]:
    """Batches per second after the first ones, and this process's processor seconds per batch."""
    for _ in itertools.islice(batches, skip):
        pass
    begun, used, count = time.perf_counter(), time.process_time(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - begun > most:
            break
    took = time.perf_counter() - begun
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    return count / took, (time.process_time() - used) / max(1, count)


def contenders(data: Rows, batch: int, workers: int) -> dict[str, Callable[[], Iterator[Any]]]:
    common = {"batch_size": batch, "num_workers": workers, "persistent_workers": True}
    there, here = unjam.DataLoader(data, pool="ray", **common), unjam.DataLoader(data, **common)
    return {
        "unjam, here": lambda: iter(here),
        "unjam, ray": lambda: iter(there),
        "Ray Data": lambda: ray_data(data, batch, workers),
    }


def death(cluster: Cluster) -> None:
    """The longest wait for a batch around the death of a node."""
    node = cluster.add_node(num_cpus=1, object_store_memory=1 << 29)
    cluster.wait_for_nodes()
    loader = unjam.DataLoader(
        Rows(1200, 10_000, 0.01), batch_size=4, num_workers=3, pool="ray", on_worker_death="restart"
    )
    waits, asked = [], time.perf_counter()
    for number, _ in enumerate(loader):
        waits.append(time.perf_counter() - asked)
        if number == 60:
            cluster.remove_node(node, allow_graceful=False)
        asked = time.perf_counter()
    print(
        f"a node dies: the longest wait for a batch is {max(waits[61:]):.1f} s, {loader.statistics().restarts} workers start again, {len(waits) * 4} samples of 1200 came"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement")
    given = parser.parse_args()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 1 << 30})
    for _ in range(2):
        cluster.add_node(num_cpus=4, object_store_memory=1 << 30)  # enough processors for all contenders together
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = []
    # bytes of a sample, samples of a batch, seconds of a sample, samples
    for size, batch, seconds, length in (
        (1_250, 8, 0.0, 60_000),
        (1_250, 8, 0.005, 12_000),
        (125_000, 8, 0.0, 8_000),
        (125_000, 8, 0.005, 6_000),
        (1_250_000, 32, 0.0, 3_000),
        (1_250_000, 32, 0.005, 2_000),
    ):
        made = contenders(Rows(length, size, seconds), batch, 2)
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
        for _ in range(given.rounds):
            for name, make in made.items():
                seen[name].append(measure(make(), 6, given.seconds))
        del made, make
        rate = {name: statistics.median(one[0] for one in found) for name, found in seen.items()}
        cost = {name: statistics.median(one[1] for one in found) for name, found in seen.items()}
        for name in seen:
            rows.append(
                [f"{size * batch / 1e6:g} MB", f"{seconds * 1e3:g} ms", name, f"{rate[name]:.1f}", f"{rate[name] * batch:,.0f}",
                 f"{rate[name] / rate['unjam, here']:.2f}", f"{rate[name] / rate['Ray Data']:.2f}", f"{cost[name] * 1e3:.2f} ms"]
            )  # fmt: skip
            print(*rows[-1], flush=True)
    print()
    columns = [
        "batch",
        "sample",
        "loader",
        "batches/s",
        "samples/s",
        "× here",
        "× Ray Data",
        "parent's processor, a batch",
    ]
    table("Two workers, on this machine or on two nodes", columns, rows)
    death(cluster)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
