"""Copies batches into pinned memory, in threads, while the consumer computes.

After the copy the slot is free. torch's allocator does not reuse pinned memory while a transfer
from it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from typing_extensions import override

from unjam.deadlines import LIVENESS_CHECK
from unjam.loader.device.transfer import Transfer
from unjam.loader.pool.batch_result import BatchResult
from unjam.system.torch_private import pin_memory

# One thread copies 5 GB/s. Four threads, on a machine with many cores, use the full memory bandwidth.
THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))


class Pinner(Transfer):
    """A few threads that pin batches, one batch each, in the order they arrive."""

    active = True

    def __init__(self, device: str | None) -> None:
        super().__init__()
        self._device = device
        self._wrapped: dict[int, PinnedBatch] = {}
        self._executor = ThreadPoolExecutor(THREADS, "unjam-pin", initializer=_prepare, initargs=_current_device())

    @override
    def wrap(self, number: int, result: BatchResult) -> BatchResult:
        # a thread starts to pin it now
        if result.empty or result.raises or isinstance(result, PinnedBatch):
            return result
        known = self._wrapped.get(number)
        if known is None or known.raw is not result:  # else an earlier call was interrupted
            known = self._wrapped[number] = PinnedBatch(result, self._executor, number, self._wrapped)
        known.begin(self._work)
        return known

    def close(self) -> None:
        """Stop; each thread finishes the batch that it is pinning."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _work(self, result: BatchResult) -> Any:
        return pin_memory(result.open(copy=False), self._device)


class PinnedBatch(BatchResult):
    """A batch that is being copied into pinned memory."""

    pinned = True

    def __init__(
        self, result: BatchResult, executor: ThreadPoolExecutor, number: int, wrapped: dict[int, PinnedBatch]
    ) -> None:
        self.raw = self._result = result
        self.report = result.report
        self._executor, self._number, self._wrapped = executor, number, wrapped
        self._begun: Future[Any] | None = None

    def begin(self, work: Callable[[BatchResult], Any]) -> None:
        """Start pinning it in a thread, unless already started."""
        if self._begun is None:
            self._begun = self._executor.submit(work, self._result)

    @property
    def _future(self) -> Future[Any]:
        assert self._begun is not None, "begin() was not called"
        return self._begun

    @property
    def ready(self) -> bool:
        """Whether it is pinned, so that `open` returns at once."""
        return self._future.done()

    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        """Return the pinned batch, whose memory belongs to torch's allocator; wait until it is ready."""
        del copy
        self._wrapped.pop(self._number, None)
        while not self._future.done():  # also if it was cancelled, which `wait` does not notice
            wait([self._future], LIVENESS_CHECK.seconds)
        return self._future.result(0), None

    def refuse(self) -> None:
        """Release the slot. If a thread is already pinning the batch, it releases the slot when it is done."""
        self._wrapped.pop(self._number, None)
        if self._future.cancel():
            self._result.refuse()


def _current_device() -> tuple[int]:
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "current_device_index"):
        return (torch.accelerator.current_device_index() if torch.accelerator.is_available() else -1,)
    return (torch.cuda.current_device() if torch.cuda.is_available() else -1,)


def _prepare(device: int) -> None:
    torch.set_num_threads(1)  # for this thread only: leave the cores to training
    if device < 0:
        return
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "set_device_index"):
        torch.accelerator.set_device_index(device)
    else:
        torch.cuda.set_device(device)
