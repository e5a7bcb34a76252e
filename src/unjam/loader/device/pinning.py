"""Copies batches into pinned memory, in threads, while the consumer computes.

After the copy the slot is free. torch's allocator does not reuse pinned memory while a transfer
from it runs.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch

from unjam.loader.engine.deadlines import LOOK_AROUND
from unjam.loader.pool.protocol import BatchResult, Facts
from unjam.system.torch_private import pin_memory

# one thread copies 5 GB/s; four, on a machine with many cores, as much as the memory gives
THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))


class Pinner:
    """A few threads that pin batches, one batch each, in the order they arrive."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._executor = ThreadPoolExecutor(THREADS, "unjam-pin", initializer=_prepare, initargs=_current_device())

    def wrap(self, number: int, result: BatchResult) -> BatchResult:
        """Return a result that gives the pinned batch when it is opened."""
        del number
        if result.empty or result.raises or isinstance(result, PinnedBatch):
            return result
        return PinnedBatch(result, self._executor.submit(self._work, result))

    def advance(self) -> None:
        """Nothing to do: the threads go on by themselves."""

    def close(self) -> None:
        """Stop; the thread finishes the batch that it is pinning."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _work(self, result: BatchResult) -> Any:
        return pin_memory(result.open(copy=False), self._device)


class PinnedBatch:
    """A batch that is being copied into pinned memory."""

    raises = empty = loading = False
    pinned = True

    def __init__(self, result: BatchResult, future: Future[Any]) -> None:
        self._result = result
        self._future = future

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        return self._result.facts

    @property
    def ready(self) -> bool:
        """Whether opening it would not wait."""
        return self._future.done()

    def open(self, *, copy: bool) -> Any:
        """Return the pinned batch."""
        del copy
        while True:
            try:
                return self._future.result(LOOK_AROUND.seconds)
            except FutureTimeout:
                if self._future.done():
                    raise

    def refuse(self) -> None:
        """Give the slot back. If the thread has started, the slot is freed when it is done."""
        if self._future.cancel():
            self._result.refuse()


def _current_device() -> tuple[int]:
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "current_device_index"):
        return (torch.accelerator.current_device_index() if torch.accelerator.is_available() else -1,)
    return (torch.cuda.current_device() if torch.cuda.is_available() else -1,)


def _prepare(device: int) -> None:
    torch.set_num_threads(1)  # for this thread only: leave the cores to the training
    if device < 0:
        return
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "set_device_index"):
        torch.accelerator.set_device_index(device)
    else:
        torch.cuda.set_device(device)
