"""Workers killed at random moments, for as long as asked: `make chaos` runs three minutes, the tests twenty seconds.

Every sample comes exactly once, in order, with the bytes of the undisturbed run; memory and descriptors stay flat.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil
import torch
from torch.utils.data import Dataset

from support import wait_until
from unjam import DataLoader

WAYS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGUSR1)
# memory that a run may grow by: Python's own allocator keeps some of what it freed
GROWTH = 48 << 20


class Work(Dataset):
    """Samples of a millisecond and 32 KB, the same every time."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return expected(index), index


def expected(index: int) -> torch.Tensor:
    return torch.arange(index, index + 8192, dtype=torch.int32)


def exit_on_request(worker: int) -> None:
    """SIGUSR1 makes a worker exit with status 0, as a library does that calls exit()."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))


@dataclass
class Killer:
    """A thread that strikes at random times, `rate` times a second on average."""

    rate: float
    seed: int
    strikes: dict[str, int] = field(default_factory=dict)
    workers: list = field(default_factory=list)
    # batches so far: on a machine so busy that none came since the last strike, the next one waits, or no worker would ever begin
    batches: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        struck_at = -1
        while not self._stop.wait(self._dice.expovariate(self.rate)):
            if self.batches == struck_at:
                continue
            alive = [worker for worker in list(self.workers) if worker.is_alive()]
            if alive:
                way = self._dice.choice(WAYS)
                try:
                    os.kill(self._dice.choice(alive).pid, way)
                except ProcessLookupError:
                    continue
                struck_at = self.batches
                self.strikes[way.name] = self.strikes.get(way.name, 0) + 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(10)


@dataclass(frozen=True)
class Footprint:
    memory: int
    descriptors: int
    children: int
    threads: int

    @classmethod
    def now(cls):
        gc.collect()
        me = psutil.Process()
        # a template is told to end when its loader goes, and takes a moment
        wait_until(lambda: not any(_is_template(one) for one in me.children(recursive=True)))
        return cls(me.memory_full_info().uss, me.num_fds(), len(me.children(recursive=True)), threading.active_count())


def _is_template(process: psutil.Process) -> bool:
    try:
        return process.name() == "unjam-template" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def run(
    seconds: float, rate: float = 5.0, seed: int = 0, *, workers: int = 3, length: int = 1600, strikes: int = 0
) -> dict:
    """Iterate under fire, for so long or until so many strikes; raise AssertionError at the first thing that is wrong."""
    until = time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > until or 0 < strikes <= sum(killer.strikes.values())

    epochs = restarts = samples = 0
    before = None
    with Killer(rate, seed) as killer:
        while not is_over():
            loader = DataLoader(
                Work(length),
                batch_size=8,
                num_workers=workers,
                worker_init_fn=exit_on_request,
                persistent_workers=bool(epochs % 2),
                max_restarts=100_000,
            )
            for _ in range(1 + epochs % 2):
                at = 0
                iterator = iter(loader)
                killer.workers = iterator._workers
                for batch, indices in iterator:
                    assert indices.tolist() == list(range(at, at + 8)), f"expected {at}, got {indices.tolist()}"
                    assert torch.equal(batch, torch.stack([expected(i) for i in indices.tolist()])), "other bytes"
                    at += 8
                    killer.batches += 1
                    if is_over():
                        break
                else:
                    assert at == length, f"{at} of {length} samples"
                samples += at
                killer.workers = []
            restarts += loader.statistics().restarts
            assert not loader.errors, loader.errors[0]
            del iterator, loader
            epochs += 1
            if before is None:
                before = Footprint.now()
    after = Footprint.now()
    assert after.descriptors <= before.descriptors, f"descriptors {before.descriptors} -> {after.descriptors}"
    assert after.children <= before.children, f"children {before.children} -> {after.children}"
    assert after.threads <= before.threads, f"threads {before.threads} -> {after.threads}"
    assert after.memory <= before.memory + GROWTH, f"memory {before.memory >> 20} -> {after.memory >> 20} MB"
    return {
        "seconds": seconds,
        "strikes": dict(killer.strikes),
        "restarts": restarts,
        "epochs": epochs,
        "samples": samples,
        "memory_mb": (before.memory >> 20, after.memory >> 20),
        "descriptors": (before.descriptors, after.descriptors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--rate", type=float, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.getLogger("unjam").setLevel(logging.ERROR)
    print(f"seed {options.seed}")
    for name, value in run(options.seconds, options.rate, options.seed).items():
        print(f"{name:>12}  {value}")


if __name__ == "__main__":
    sys.exit(main())
