"""Records how the program uses its accelerator: copies to it and waits for it by line, and whether it is idle during loading.

Nothing is patched on a machine without one. Operations whose result's shape depends on the data (`nonzero`, masks) wait
inside torch and are not seen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from unjam.doctor.check.target.observer import Observer, users_line
from unjam.doctor.facts.program_facts import DeviceCopies, DeviceWaits
from unjam.doctor.facts.trial import Place

SMALLEST = 1 << 18  # bytes; the cost of smaller tensors is not their memory
MOST_LINES = 20
LOOKED_AT = 4096  # elements
# methods of a tensor on a device that return only when the device has computed it
_WAITS = ("item", "tolist", "cpu", "to", "__bool__", "__float__", "__int__")


class DeviceObserver:
    """Counts copies to the device, and waits for it, by the user's line."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._copies: dict[Place, dict[str, Any]] = {}  # line -> fields of Transfers
        self._waits: dict[Place, list[float]] = {}  # line -> count, seconds
        self.idle = 0.0  # seconds of loading during which the device had no work
        self._is_waiting = False
        self._cuda: Any = None

    def patch(self) -> None:
        """Patch torch, if there is an accelerator; once."""
        torch = sys.modules.get("torch")
        if self._cuda is not None or torch is None or not self._observer.active or not torch.cuda.is_available():
            return
        self._cuda = torch.cuda
        for name in ("to", "cuda"):
            setattr(torch.Tensor, name, self._patched_copy(getattr(torch.Tensor, name)))
        for name in _WAITS:
            setattr(torch.Tensor, name, self._patched_wait(getattr(torch.Tensor, name)))
        for owner in (torch.cuda.Stream, torch.cuda.Event):
            owner.synchronize = self._patched_wait(owner.synchronize)

    def is_idle(self) -> bool:
        """Whether the program's current stream has no work; never waits."""
        with contextlib.suppress(Exception):
            return self._cuda is not None and self._cuda.is_initialized() and bool(self._cuda.current_stream().query())
        return False

    def record_counts(self) -> None:
        """Record what was counted so far; a later fact about a line replaces an earlier one."""
        for line, known in self._copies.items():
            self._observer.record(DeviceCopies(line, **known))
        for place, (count, seconds) in self._waits.items():
            self._observer.record(DeviceWaits(place, int(count), seconds, self.idle))

    def _patched_copy(self, plain: Callable[..., Any]) -> Any:
        @functools.wraps(plain)
        def copied(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this.device.type != "cpu" or not _in_main_thread():
                return plain(this, *args, **kwargs)
            began = time.perf_counter()
            result = plain(this, *args, **kwargs)
            took = time.perf_counter() - began
            if result.device.type != "cpu":
                with contextlib.suppress(Exception):
                    self._count_copy(this, result, took, plain)
            return result

        return copied

    def _count_copy(self, source: Any, target: Any, took: float, plain: Callable[..., Any]) -> None:
        place = users_line() if source.nbytes >= SMALLEST else None
        if place is None or (place not in self._copies and len(self._copies) >= MOST_LINES):
            return
        known = self._copies.get(place)
        if known is None:
            known = self._copies[place] = {
                "count": 0, "nbytes": 0, "seconds": 0.0, "pinned": bool(source.is_pinned()), "dtype": str(source.dtype),
                "fits_in_bytes": _fits_in_bytes(source),
            }  # fmt: skip
        known["count"] += 1
        known["nbytes"] += source.nbytes
        known["seconds"] += took
        if known["count"] == 5 and not known["pinned"]:
            known["from_pinned"], known["from_pageable"] = _compared(source, target, plain)

    def _patched_wait(self, plain: Callable[..., Any]) -> Any:
        @functools.wraps(plain)
        def waited(this: Any, *args: Any, **kwargs: Any) -> Any:
            device = getattr(getattr(this, "device", None), "type", "")
            if self._is_waiting or device == "cpu" or not _in_main_thread():
                return plain(this, *args, **kwargs)
            self._is_waiting = True  # one of these methods may call another
            began = time.perf_counter()
            try:
                return plain(this, *args, **kwargs)
            finally:
                self._is_waiting = False
                with contextlib.suppress(Exception):
                    self._count_wait(time.perf_counter() - began)

        return waited

    def _count_wait(self, seconds: float) -> None:
        place = users_line()
        if place is not None and (place in self._waits or len(self._waits) < MOST_LINES):
            known = self._waits.setdefault(place, [0, 0.0])
            known[0] += 1
            known[1] += seconds


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _fits_in_bytes(tensor: Any) -> bool:
    """Whether float numbers are whole numbers from 0 to 255, or such numbers divided by 255."""
    if str(tensor.dtype) not in ("torch.float32", "torch.float64"):
        return False
    part = tensor.detach().flatten()[:LOOKED_AT].double()
    low, high = float(part.min()), float(part.max())
    if low < 0 or high > 255 or low == high:
        return False
    scaled = part if high > 1 else part * 255
    return bool(((scaled - scaled.round()).abs() < 1e-3).all())


def _compared(source: Any, target: Any, plain: Callable[..., Any]) -> tuple[float, float]:
    """Seconds that the thread is blocked by a copy from pinned memory, and by one from pageable memory."""
    torch: Any = sys.modules["torch"]
    pinned = source.detach().pin_memory()
    found = []
    for one in (pinned, source.detach()):
        torch.cuda.synchronize(target.device)
        began = time.perf_counter()
        plain(one, target.device, non_blocking=True)
        found.append(time.perf_counter() - began)
    torch.cuda.synchronize(target.device)
    return found[0], found[1]
