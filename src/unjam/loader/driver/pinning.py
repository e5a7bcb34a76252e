"""Batches into pinned memory, in a thread, while the consumer computes.

The copy into pinned memory ends the use of the slot, and torch's own allocator guards pinned memory against reuse while
a transfer from it runs.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import torch

from unjam.loader.engine.deadlines import LOOK_AROUND
from unjam.loader.engine.events import Result
from unjam.loader.pool.protocol import Arrival, Facts, Load
from unjam.system.torch_private import pin_memory


class Pinner:
    """One thread that pins batches in the order they arrive."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._executor = ThreadPoolExecutor(1, "unjam-pin", initializer=_prepare, initargs=_current_device())

    def pin(self, load: Load) -> Load:
        """A load that will be pinned when it is opened."""
        return PinnedLoad(load, self._executor.submit(self._work, load))

    def pin_all(self, arrivals: deque[Arrival]) -> None:
        """Pin every batch among what has arrived."""
        for place, arrival in enumerate(arrivals):
            load = arrival.load
            if load is None or load.empty or isinstance(load, PinnedLoad):
                continue
            if isinstance(arrival.event, Result):
                arrivals[place] = Arrival(arrival.event, self.pin(load))

    def close(self) -> None:
        """Stop; what is being pinned is finished by its thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _work(self, load: Load) -> Any:
        return pin_memory(load.open(copy=False), self._device)


class PinnedLoad:
    """A batch on its way into pinned memory."""

    raises = empty = loading = False

    def __init__(self, load: Load, future: Future[Any]) -> None:
        self._load = load
        self._future = future

    @property
    def facts(self) -> Facts:
        """See `Load`."""
        return self._load.facts

    def open(self, *, copy: bool) -> Any:
        """The pinned batch."""
        del copy
        while True:
            try:
                return self._future.result(LOOK_AROUND.seconds)
            except FutureTimeout:
                if self._future.done():
                    raise

    def refuse(self) -> None:
        """Give the slot back, unless the thread has it already; then it does so itself."""
        if self._future.cancel():
            self._load.refuse()


def _current_device() -> tuple[int]:
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "current_device_index"):
        return (torch.accelerator.current_device_index() if torch.accelerator.is_available() else -1,)
    return (torch.cuda.current_device() if torch.cuda.is_available() else -1,)


def _prepare(device: int) -> None:
    torch.set_num_threads(1)  # for this thread only: the copy must not take the cores from the training
    if device < 0:
        return
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "set_device_index"):
        torch.accelerator.set_device_index(device)
    else:
        torch.cuda.set_device(device)
