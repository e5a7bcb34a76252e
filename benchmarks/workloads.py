"""Six data-loading workloads with different bottlenecks, and so with different best settings."""

from __future__ import annotations

import multiprocessing
import time
import zlib

import torch
from torch.utils.data import DataLoader, Dataset

LENGTH = 200_000


class Workload(Dataset):
    """`batch`: its batch size."""

    batch = 32

    def __len__(self) -> int:
        return LENGTH


class Decode(Workload):
    """Bound by processors: unpacks and computes."""

    def __init__(self) -> None:
        self.packed = zlib.compress(bytes(range(256)) * 1200, 6)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.frombuffer(bytearray(zlib.decompress(self.packed)), dtype=torch.uint8).view(3, 320, 320)
        image = image.float().div_(255).sub_(0.5)
        return image[:, :64, :64].contiguous(), index % 10


class Latency(Workload):
    """Bound by waiting: a slow disk or network."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.008)
        return torch.full((64,), float(index)), index % 10


class Tiny(Workload):
    """Rows of a tensor in memory."""

    batch = 64

    def __init__(self) -> None:
        self.rows = torch.arange(LENGTH * 8, dtype=torch.float32).view(LENGTH, 8)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.rows[index], index


class Large(Workload):
    """Bound by memory bandwidth: 4 MB per sample."""

    batch = 8

    def __init__(self) -> None:
        self.block = torch.rand(1 << 20)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.block + index


class Bimodal(Workload):
    """One sample in a hundred takes two hundred times as long."""

    batch = 16

    def __getitem__(self, index: int) -> int:
        time.sleep(0.2 if index * 7919 % 100 == 0 else 0.001)
        return index


class Locked(Workload):
    """Serialised: every sample takes a lock that all workers share."""

    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            time.sleep(0.001)
        return index


WORKLOADS = {kind.__name__.lower(): kind for kind in (Decode, Latency, Tiny, Large, Bimodal, Locked)}


def _maker(name: str):
    def make() -> DataLoader:
        dataset = WORKLOADS[name]()
        return DataLoader(dataset, batch_size=dataset.batch, num_workers=2)

    return make


decode, latency, tiny, large, bimodal, locked = map(_maker, WORKLOADS)
