"""Records how the program sends tensors to an accelerator: from which line, how much, how long its thread was held.

Nothing is patched on a machine without one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from typing import Any

from unjam.doctor.check.target.observer import Observer, place_fields

SMALLEST = 1 << 18  # bytes; the cost of smaller tensors is not their memory
MOST_LINES = 20
LOOKED_AT = 4096  # elements


class TransferObserver:
    """Counts transfers by the user's line."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        self._patched = False

    def patch(self) -> None:
        """Patch torch's methods, if there is an accelerator; once."""
        torch = sys.modules.get("torch")
        if self._patched or torch is None or not self._observer.active:
            return
        self._patched = True
        if torch.cuda.is_available():
            for name in ("to", "cuda"):
                setattr(torch.Tensor, name, self._observed(getattr(torch.Tensor, name)))

    def _observed(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def moved(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this.device.type != "cpu" or threading.current_thread() is not threading.main_thread():
                return plain(this, *args, **kwargs)
            began = time.perf_counter()
            result = plain(this, *args, **kwargs)
            took = time.perf_counter() - began
            if result.device.type != "cpu":
                with contextlib.suppress(Exception):
                    self._moved(this, result, took, plain)
            return result

        return moved

    def _moved(self, source: Any, target: Any, took: float, plain: Any) -> None:
        if source.nbytes < SMALLEST:
            return
        place = place_fields(sys._getframe(2))  # noqa: SLF001 - the caller of the method
        if not place:
            return
        key = (place["file"], place["line"])
        known = self._lines.get(key)
        if known is None:
            if len(self._lines) >= MOST_LINES:
                return
            known = self._lines[key] = {
                "count": 0, "bytes": 0, "s": 0.0, "pinned": bool(source.is_pinned()), "dtype": str(source.dtype), "small": _fits_in_bytes(source),
            }  # fmt: skip
        known["count"] += 1
        known["bytes"] += source.nbytes
        known["s"] += took
        if known["count"] == 5 and not known["pinned"]:
            known["from_pinned"], known["from_pageable"] = _compared(source, target, plain)

    def tell(self) -> None:
        """Write what was counted so far; a later word about a line replaces an earlier one."""
        for (file, line), known in self._lines.items():
            self._observer.write("transfers", file=file, line=line, **known)


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


def _compared(source: Any, target: Any, plain: Any) -> tuple[float, float]:
    """Seconds that the thread is held by a copy from pinned memory, and by one from the memory that it is."""
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
