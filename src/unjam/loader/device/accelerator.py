"""What unjam needs of an accelerator: a stream of its own, events, registered memory.

`Accelerator` is the whole interface; tests put a stand-in in its place.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unjam.deadlines import COPY_ENDS
from unjam.errors import DeviceError
from unjam.system.logs import log

# registered memory is pinned for every device of the process
_PORTABLE = 1
_ALREADY = 712  # an earlier call has registered it, and was interrupted after that
# what a sparse tensor is made of
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_LATER = 16  # tensors
_LOOK = 0.001  # seconds between two looks at an event


class Mark(Protocol):
    """A point in our stream."""

    def done(self) -> bool:
        """Whether the device has come to it."""

    def times(self) -> tuple[int, int, int]:
        """When our work before it began and ended, and how long the consumer's stream waited for it; in nanoseconds.

        To be asked when it is done.
        """


class Accelerator(Protocol):
    """A device with a stream of our own."""

    device: torch.device
    # whether memory of our own can be read by the device directly, and whether pinned memory can
    registers: bool
    pins: bool

    def ours(self) -> contextlib.AbstractContextManager[Any]:
        """What is done inside goes to our stream."""

    def staging(self, size: int) -> torch.Tensor:
        """Return pinned memory, which may be dropped as soon as a copy from it was begun."""

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy of a tensor."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory of the device for a tensor."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a copy to the device."""

    def begin(self, *, after_consumer: bool) -> Any:
        """A point before the work of a batch, for `mark`; `after_consumer`: after all that the consumer has begun."""

    def mark(self, begun: Any) -> Mark:
        """A point after all that we have begun so far."""

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """Let the consumer's current stream wait for a point, and protect tensors that it will use."""

    def register(self, address: int, size: int) -> bool:
        """Let the device read memory directly; False if it is refused."""

    def undo(self, address: int) -> Callable[[], None]:
        """Return what ends the registration of memory, in this process only."""


class StreamMark:
    """An event after a copy, and those that time it."""

    def __init__(self, clock: tuple[Any, int], begun: Any, end: Any) -> None:
        self._clock = clock  # an event, and when it was
        self._begun, self._end = begun, end
        self.waits: tuple[Any, Any] | None = None  # on the consumer's stream

    @property
    def end(self) -> Any:
        """The event itself."""
        return self._end

    def done(self) -> bool:
        """See `Mark`."""
        return bool(self._end.query())

    def times(self) -> tuple[int, int, int]:
        """See `Mark`."""
        first, at = self._clock
        begun = at + _nanoseconds(first, self._begun)
        waited = 0 if self.waits is None or not self.waits[1].query() else _nanoseconds(*self.waits)
        return begun, begun + _nanoseconds(self._begun, self._end), waited


class StreamAccelerator:
    """Any device of torch with streams: CUDA, ROCm, XPU."""

    pins = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = getattr(torch, device.type)
        self._consumers = self._module.current_stream(device)
        self._stream = self._module.Stream(device=device)
        self._first = True
        self._clock = (self._event(self._stream), time.monotonic_ns())
        self._unprotected: deque[torch.Tensor] = deque(maxlen=_LATER)
        self.registers = device.type == "cuda"

    def ours(self) -> contextlib.AbstractContextManager[Any]:
        """See `Accelerator`."""
        self._consumers = self._module.current_stream(self.device)
        found: contextlib.AbstractContextManager[Any] = self._module.stream(self._stream)
        return found

    def staging(self, size: int) -> torch.Tensor:
        """See `Accelerator`."""
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator`."""
        # always a copy: the consumer may change a tensor that is pinned already
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator`."""
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Accelerator`."""
        target.copy_(source, non_blocking=True)

    def begin(self, *, after_consumer: bool) -> Any:
        """See `Accelerator`."""
        if after_consumer or self._first:
            self._first = False  # what the program has prepared on the device is there before the first batch
            self._stream.wait_stream(self._consumers)
        return self._event(self._stream)

    def mark(self, begun: Any) -> StreamMark:
        """See `Accelerator`."""
        return StreamMark(self._clock, begun, self._event(self._stream))

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """See `Accelerator`."""
        assert isinstance(mark, StreamMark), "a mark of another accelerator"
        current = self._module.current_stream(self.device)
        for tensor in tensors:
            if tensor.device.type == self.device.type:
                self._protect(tensor, current)
        if mark.done():
            return
        before = self._event(current)
        current.wait_event(mark.end)
        mark.waits = (before, self._event(current))

    def _protect(self, tensor: torch.Tensor, current: Any) -> None:
        if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
            tensor.record_stream(current)
            return
        parts = _PARTS.get(tensor.layout, ())
        for name in parts:
            getattr(tensor, name)().record_stream(current)
        if not parts:
            self._unprotected.append(tensor)  # freed some batches later

    def register(self, address: int, size: int) -> bool:
        """See `Accelerator`."""
        with torch.cuda.device(self.device):
            refused = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))
            if refused in (0, _ALREADY):
                return True
            # the refusal stays in the thread as its last error, and the next kernel would raise it
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device).add_(1)
            return False

    def undo(self, address: int) -> Callable[[], None]:
        """See `Accelerator`."""
        runtime, home, device = torch.cuda.cudart(), os.getpid(), self.device

        def unregister() -> None:
            if os.getpid() == home:  # a forked child must not use the driver
                with contextlib.suppress(Exception), torch.cuda.device(device):  # at the interpreter's end
                    runtime.cudaHostUnregister(address)

        return unregister

    def _event(self, stream: Any) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record(stream)
        return event


def _nanoseconds(before: Any, after: Any) -> int:
    return int(before.elapsed_time(after) * 1e6)


class PlainMark:
    """Nothing runs in the background: all is done."""

    def done(self) -> bool:
        """See `Mark`."""
        return True

    def times(self) -> tuple[int, int, int]:
        """See `Mark`."""
        now = time.monotonic_ns()
        return now, now, 0


class PlainAccelerator:
    """A device without streams: batches are copied when the consumer asks for them."""

    registers = pins = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def ours(self) -> contextlib.AbstractContextManager[Any]:
        """See `Accelerator`."""
        return contextlib.nullcontext()

    def staging(self, size: int) -> torch.Tensor:
        """See `Accelerator`."""
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator`."""
        return tensor

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator`."""
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See `Accelerator`."""
        target.copy_(source)

    def begin(self, *, after_consumer: bool) -> Any:
        """See `Accelerator`."""
        del after_consumer

    def mark(self, begun: Any) -> PlainMark:
        """See `Accelerator`."""
        del begun
        return PlainMark()

    def hand_over(self, mark: Mark, tensors: list[torch.Tensor]) -> None:
        """See `Accelerator`."""
        del mark, tensors

    def register(self, address: int, size: int) -> bool:
        """See `Accelerator`."""
        del address, size
        return False

    def undo(self, address: int) -> Callable[[], None]:
        """See `Accelerator`."""
        del address
        return lambda: None


def check(device: torch.device) -> None:
    """Raise `DeviceError` if an accelerator is not there."""
    if device.type == "meta" or (device.type == "mps" and torch.backends.mps.is_available()):
        return
    module: Any = getattr(torch, device.type, None)
    available = getattr(module, "is_available", None)
    if available is None or not available():
        raise DeviceError(f"device={str(device)!r}: this machine, or this build of torch, has no {device.type} device")
    count = module.device_count()
    index: int | None = device.index
    if index is not None and index >= count:
        raise DeviceError(f"device={str(device)!r}: there are {count} {device.type} devices, numbered from 0")


def open_accelerator(device: torch.device) -> Accelerator:
    """Return an accelerator, ready to use."""
    check(device)
    module: Any = getattr(torch, device.type, None)
    if module is None or not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        return PlainAccelerator(device)
    index: int | None = device.index
    return StreamAccelerator(torch.device(device.type, module.current_device() if index is None else index))


def _over(mark: Mark) -> bool:
    try:
        return mark.done()
    except RuntimeError:
        return True  # the device has failed: it reads nothing any more


def await_marks(marks: list[Mark]) -> bool:
    """Wait until the device has come to all marks; False if it does not in time."""
    until = time.monotonic() + COPY_ENDS.seconds
    while not all(_over(mark) for mark in marks):
        if time.monotonic() > until:
            log.warning("copies to the device did not end within %g s; their memory is kept", COPY_ENDS.seconds)
            return False
        threading.Event().wait(_LOOK)
    return True
