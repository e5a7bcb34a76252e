"""Where batches go between their arrival and the consumer: nowhere, to pinned memory or to a device."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from unjam.loader.engine.events import Result
from unjam.loader.pool.batch_result import BatchResult
from unjam.loader.pool.protocol import PoolEvent
from unjam.loader.worker.messages import BatchRequest


class Transfer:
    """Leaves batches where they are; subclasses take them further, ahead of the consumer.

    `on_device`: the user's function while the consumer asks for a batch; see NOTE [ The end of an iterator ].
    """

    active = False

    def __init__(self) -> None:
        self.requests: dict[int, BatchRequest] = {}
        self.on_device: Callable[[Any], Any] | None = None

    def take(self, arrivals: deque[PoolEvent]) -> None:
        """Begin to transfer what has arrived; the transfer continues while the consumer computes."""
        if not self.active:
            return
        for place, event in enumerate(arrivals):
            if isinstance(event, Result) and event.result is not None:
                result = self.wrap(event.batch, event.result)
                if result is not event.result:
                    arrivals[place] = dataclasses.replace(event, result=result)
        self.advance()

    def wrap(self, number: int, result: BatchResult) -> BatchResult:
        """Return a result that gives the transferred batch when it is opened; one that is wrapped stays as it is."""
        del number
        return result

    def advance(self) -> None:
        """Begin what can be begun now."""

    def finish(self, data: Any) -> Any:
        """Return what the consumer gets for an opened batch: with `device="cpu"`, what `on_device` makes of it."""
        if self.on_device is None:
            return data
        with torch.inference_mode(mode=False), torch.no_grad():
            return self.on_device(data)

    def close(self) -> None:
        """Begin nothing more."""
