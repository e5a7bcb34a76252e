"""Records where the program's thread waits for its accelerator, and whether the device is idle while the program loads data.

Nothing is patched on a machine without one. Operations whose result's shape depends on the data (`nonzero`, masks) wait
inside torch and are not seen.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from typing import Any

from unjam.doctor.check.target.observer import Observer, place_fields

MOST_LINES = 20
# what a tensor on a device can only answer when the device has come to it
_ANSWERS = ("item", "tolist", "cpu", "to", "__bool__", "__float__", "__int__")


class SynchronisationObserver:
    """Counts waits for the device by the user's line."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[tuple[str, int], list[float]] = {}  # count, seconds
        self._idle = 0.0
        self._inside = False
        self._cuda: Any = None

    def patch(self) -> None:
        """Patch torch, if there is an accelerator; once."""
        torch = sys.modules.get("torch")
        if self._cuda is not None or torch is None or not self._observer.active or not torch.cuda.is_available():
            return
        self._cuda = torch.cuda
        for name in _ANSWERS:
            setattr(torch.Tensor, name, self._observed(getattr(torch.Tensor, name)))
        for owner in (torch.cuda.Stream, torch.cuda.Event):
            owner.synchronize = self._observed(owner.synchronize)

    def is_idle(self) -> bool:
        """Whether the device has nothing to do, as far as the program's current stream tells; never waits."""
        with contextlib.suppress(Exception):
            return self._cuda is not None and self._cuda.is_initialized() and bool(self._cuda.current_stream().query())
        return False

    def loaded(self, seconds: float) -> None:
        """The program got a batch; the device was idle when it asked for it."""
        self._idle += seconds

    def tell(self) -> None:
        """Write what was counted so far; a later word about a line replaces an earlier one."""
        for (file, line), (count, seconds) in self._lines.items():
            self._observer.write("synchronised", file=file, line=line, count=int(count), s=seconds, idle=self._idle)

    def _observed(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def answered(this: Any, *args: Any, **kwargs: Any) -> Any:
            where = getattr(getattr(this, "device", None), "type", "")
            if self._inside or where == "cpu" or threading.current_thread() is not threading.main_thread():
                return plain(this, *args, **kwargs)
            self._inside = True  # one of these may use another
            began = time.perf_counter()
            try:
                return plain(this, *args, **kwargs)
            finally:
                self._inside = False
                with contextlib.suppress(Exception):
                    self._waited(time.perf_counter() - began)

        return answered

    def _waited(self, seconds: float) -> None:
        place = place_fields(sys._getframe(2))  # noqa: SLF001 - the caller of the method
        key = (place["file"], place["line"])
        if key in self._lines or len(self._lines) < MOST_LINES:
            known = self._lines.setdefault(key, [0, 0.0])
            known[0] += 1
            known[1] += seconds
