"""The parent's processor time per batch, by the number of workers on a cluster.

No cluster is needed: simulated agents answer at once with prepared batches, so that only the parent works (engine, driver, pool, links,
unpacking). `benchmarks/ray_cluster.py` measures the cost of Ray itself per reply.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import statistics
import threading
import time
from collections import deque
from typing import Any

import torch

from harness import table
from unjam.loader.cluster import node_messages as msg
from unjam.loader.cluster.cluster_pool import ClusterPool
from unjam.loader.cluster.node_agent import boot_id
from unjam.loader.cluster.node_link import NodeLink
from unjam.loader.driver.driver import Driver
from unjam.loader.driver.epoch_progress import EpochProgress
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.engine.config import Config
from unjam.loader.engine.machine import Machine
from unjam.loader.engine.policy import Policy
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.unpacking import BufferAt, PackedBatch
from unjam.loader.worker import messages
from unjam.loader.worker.spec import WorkerSpec


class ReadyAgent:
    """Answers each task at once with the same batch."""

    def __init__(self, made: PackedBatch, data: bytes) -> None:
        self._made, self._data = made, data
        self._todo: deque[Any] = deque()
        self._some = threading.Condition()

    def tell(self, orders: list[Any]) -> None:
        with self._some:
            self._todo.extend(orders)
            self._some.notify()

    def poll(self, seconds: float, within: float) -> msg.Reply:
        del within
        with self._some:
            if not self._todo:
                self._some.wait(seconds)
            todo, self._todo = self._todo, deque()
        events: list[Any] = []
        for order in todo:
            if isinstance(order, msg.StartWorkers):
                events += [
                    msg.FromWorker(spec.worker, messages.Ready(time.monotonic_ns(), 0), b"") for spec in order.specs
                ]
            elif isinstance(order, msg.SendRequest):
                made = dataclasses.replace(self._made, batch=order.request.batch)
                events.append(msg.FromWorker(order.worker, made, memoryview(self._data)))
        return msg.Reply(time.monotonic_ns(), boot_id(), tuple(events))

    def ask(self, question: str, argument: Any, within: float) -> Any:
        del question, argument, within

    def close(self, within: float) -> None:
        del within


class ReadyCluster:
    """A cluster of nodes with sixteen processors each."""

    def __init__(self, made: PackedBatch, data: bytes) -> None:
        self._made, self._data = made, data

    def grow(self, workers: int, links: list[NodeLink], specs: Any, wake: Any) -> list[NodeLink]:
        del links, specs
        return [NodeLink(ReadyAgent(self._made, self._data), f"n{at}", 16, wake) for at in range(-(-workers // 16))]

    def lost(self, link: NodeLink) -> None:
        del link

    def why_no_room(self) -> str:
        return ""


def batch_of(size: int) -> tuple[PackedBatch, bytes]:
    """Pack a batch of one tensor as a worker does."""
    from unjam.loader.transport import unpacking

    class Tensor:
        def __reduce__(self) -> Any:
            return unpacking.rebuild_tensor, (0, torch.uint8, (size,), None)

    stream = pickle.dumps([Tensor()])
    times = torch.full((11,), time.monotonic_ns(), dtype=torch.int64).numpy().tobytes()
    return PackedBatch(stream, None, (BufferAt(0, 0, False),), None, 0, samples=8, times=times), bytes(size)


def measure(workers: int, size: int, batches: int) -> tuple[float, float]:
    """Processor seconds and wall seconds per batch."""
    specs = [WorkerSpec(n, workers, False, True, False, 0, None, 1, True) for n in range(workers)]
    pool = ClusterPool(ReadyCluster(*batch_of(size)), specs, WorkerReports(), 60.0)
    machine = Machine(Config(workers, 2))
    settings = DriverSettings(
        policy=Policy(), timeout=0, sample_timeout=None, warn_after=None, expected=None, batched=True
    )
    driver = Driver(pool, machine, settings, Recorder(None, None, "Rows"))
    indices = iter([[n] * 8 for n in range(batches + 4 * workers)])
    driver.begin(lambda: next(indices), None, EpochProgress(1))
    for _ in range(2 * workers):
        driver.next(lambda: next(indices))
    begun, used = time.perf_counter(), time.process_time()
    count = 0
    try:
        while count < batches:
            driver.next(lambda: next(indices))
            count += 1
    except StopIteration:
        pass
    found = (time.process_time() - used) / count, (time.perf_counter() - begun) / count
    driver.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 16, 64, 256, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    for workers in given.workers:
        for size in (10_000, 1_000_000):
            seen = [measure(workers, size, 4000) for _ in range(given.rounds)]
            used, took = (statistics.median(one[at] for one in seen) for at in (0, 1))
            rows.append(
                [
                    str(workers),
                    f"{size / 1e6:g} MB",
                    f"{used * 1e6:.0f} µs",
                    f"{1 / took:,.0f}",
                    f"{size / took / 1e9:.2f} GB/s",
                ]
            )
            print(*rows[-1], flush=True)
    table("The parent alone", ["workers", "batch", "processor, a batch", "batches/s at most", "that is"], rows)


if __name__ == "__main__":
    main()
