"""The operations that unjam needs on an accelerator: its own stream, events, registered memory.

`Accelerator` is the whole interface, and works for devices without streams. Tests use a stand-in for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from unjam.deadlines import DEVICE_COPIES
from unjam.errors import DeviceError
from unjam.loader.transport.packing import SPARSE_PARTS
from unjam.system.logs import log

# cudaHostRegisterPortable: registered memory counts as pinned for every device of the process
_PORTABLE = 1
# cudaErrorHostMemoryAlreadyRegistered: an earlier call registered it and was then interrupted
_ALREADY = 712
_KEPT = 16  # tensors
_POLL = 0.001  # seconds between two queries of an event


class StreamPoint:
    """A point in our stream. This one is always completed: nothing runs in the background."""

    def done(self) -> bool:
        """Return whether the device has completed all work before this point."""
        return True

    def times(self) -> tuple[int, int, int]:
        """Return when our work before it started and ended, and how long the consumer's stream waited for it.

        In nanoseconds. Call it only when the point is done.
        """
        now = time.monotonic_ns()
        return now, now, 0


class Accelerator:
    """A device. This one has no streams: batches are copied when the consumer asks for them."""

    # whether the device can read memory directly after `register`, and whether it can read pinned memory
    registers = pins = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def ours(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which work goes to our stream."""
        return contextlib.nullcontext()

    def staging(self, size: int) -> torch.Tensor:
        """Return host memory, pinned if possible, that may be dropped as soon as a copy from it has started."""
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy of a tensor, or the tensor itself if the device does not need one."""
        return tensor

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Allocate device memory for a tensor."""
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy to the device."""
        target.copy_(source)

    def begin(self, *, after_consumer: bool) -> Any:
        """Return the start of a batch's work, for `point`; `after_consumer`: wait for the consumer's work so far."""
        del after_consumer

    def point(self, begun: Any) -> StreamPoint:
        """Return a point after all work that we have started so far."""
        del begun
        return StreamPoint()

    def hand_over(self, point: StreamPoint, tensors: list[torch.Tensor]) -> None:
        """Make the consumer's current stream wait for a point; keep the tensors' memory while that stream uses it."""
        del point, tensors

    def register(self, address: int, size: int) -> bool:
        """Let the device read memory directly; return False if the driver refuses."""
        del address, size
        return False

    def undo(self, address: int) -> Callable[[], None]:
        """Return a function that unregisters memory, in this process only."""
        del address
        return lambda: None


class RecordedPoint(StreamPoint):
    """An event after a copy, and the events that time it."""

    def __init__(self, clock: tuple[Any, int], begun: Any, end: Any) -> None:
        self._clock = clock  # an event, and its time
        self._begun, self.end = begun, end
        self.waits: tuple[Any, Any] | None = None  # on the consumer's stream

    def done(self) -> bool:
        """Return whether the event is completed."""
        return bool(self.end.query())

    def times(self) -> tuple[int, int, int]:
        """Return the times of the events."""
        first, at = self._clock
        begun = at + _nanoseconds(first, self._begun)
        waited = 0 if self.waits is None or not self.waits[1].query() else _nanoseconds(*self.waits)
        return begun, begun + _nanoseconds(self._begun, self.end), waited


class StreamAccelerator(Accelerator):
    """Any device that torch supports with streams: CUDA, ROCm, XPU."""

    pins = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._module: Any = getattr(torch, device.type)
        self._consumers = self._module.current_stream(device)
        self._stream = self._module.Stream(device=device)
        self._first = True
        self._clock = (self._event(self._stream), time.monotonic_ns())
        self._unprotected: deque[torch.Tensor] = deque(maxlen=_KEPT)
        self.registers = device.type == "cuda"

    def ours(self) -> contextlib.AbstractContextManager[Any]:
        """Make our stream the current one; remember the consumer's."""
        self._consumers = self._module.current_stream(self.device)
        found: contextlib.AbstractContextManager[Any] = self._module.stream(self._stream)
        return found

    def staging(self, size: int) -> torch.Tensor:
        """Return pinned memory; torch's allocator does not reuse it while a copy reads it."""
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a pinned copy, even of a pinned tensor: the consumer may change the original."""
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start a copy that runs in the background."""
        target.copy_(source, non_blocking=True)

    def begin(self, *, after_consumer: bool) -> Any:
        """Return an event before the work of a batch."""
        if after_consumer or self._first:
            self._first = False  # the first batch must see what the program has prepared on the device
            self._stream.wait_stream(self._consumers)
        return self._event(self._stream)

    def point(self, begun: Any) -> RecordedPoint:
        """Return a point with an event in our stream."""
        return RecordedPoint(self._clock, begun, self._event(self._stream))

    def hand_over(self, point: StreamPoint, tensors: list[torch.Tensor]) -> None:
        """Record the consumer's stream on the tensors and make it wait for the point's event."""
        assert isinstance(point, RecordedPoint), "a point of another accelerator"
        current = self._module.current_stream(self.device)
        for tensor in tensors:
            if tensor.device.type == self.device.type:
                self._protect(tensor, current)
        if point.done():
            return
        before = self._event(current)
        current.wait_event(point.end)
        point.waits = (before, self._event(current))

    def _protect(self, tensor: torch.Tensor, current: Any) -> None:
        if tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested:
            tensor.record_stream(current)
            return
        parts = SPARSE_PARTS.get(tensor.layout, ())
        for name in parts:
            getattr(tensor, name)().record_stream(current)
        if not parts:
            self._unprotected.append(tensor)  # freed some batches later

    def register(self, address: int, size: int) -> bool:
        """Register memory with the CUDA driver."""
        with torch.cuda.device(self.device):
            refused = int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE))
            if refused in (0, _ALREADY):
                return True
            # CUDA keeps the refusal as this thread's last error, and the next kernel would raise it
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self.device).add_(1)
            return False

    def undo(self, address: int) -> Callable[[], None]:
        """Return a function that unregisters memory from the CUDA driver."""
        runtime, home, device = torch.cuda.cudart(), os.getpid(), self.device

        def unregister() -> None:
            if os.getpid() == home:  # a forked child must not use the driver
                with contextlib.suppress(Exception), torch.cuda.device(device):  # it may fail at interpreter exit
                    runtime.cudaHostUnregister(address)

        return unregister

    def _event(self, stream: Any) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record(stream)
        return event


def _nanoseconds(before: Any, after: Any) -> int:
    return int(before.elapsed_time(after) * 1e6)


def check(device: torch.device) -> None:
    """Raise `DeviceError` if this machine does not have the device."""
    if device.type == "meta" or (device.type == "mps" and torch.backends.mps.is_available()):
        return
    module: Any = getattr(torch, device.type, None)
    available = getattr(module, "is_available", None)
    if available is None or not available():
        raise DeviceError(f"device={str(device)!r}: this machine, or this build of torch, has no {device.type} device")
    count = module.device_count()
    index: int | None = device.index
    if index is not None and index >= count:
        raise DeviceError(f"device={str(device)!r}: the last device of this machine is {device.type}:{count - 1}")


def open_accelerator(device: torch.device) -> Accelerator:
    """Return an accelerator, ready to use."""
    check(device)
    module: Any = getattr(torch, device.type, None)
    if module is None or not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        return Accelerator(device)
    index: int | None = device.index
    return StreamAccelerator(torch.device(device.type, module.current_device() if index is None else index))


def _completed(point: StreamPoint) -> bool:
    try:
        return point.done()
    except RuntimeError:
        return True  # the device has failed and no longer reads anything


def await_points(points: list[StreamPoint]) -> bool:
    """Wait until the device has completed all points; return False on timeout."""
    until = time.monotonic() + DEVICE_COPIES.seconds
    while not all(_completed(point) for point in points):
        if time.monotonic() > until:
            log.warning(
                "copies to the device did not complete within %g s; their memory is kept", DEVICE_COPIES.seconds
            )
            return False
        threading.Event().wait(_POLL)
    return True
