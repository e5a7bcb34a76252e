"""Moves batches to an accelerator ahead of the consumer. See NOTE [ From a slot to the device ]."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from unjam.errors import DeviceError
from unjam.loader.device import structure
from unjam.loader.device.accelerator import Accelerator, StreamPoint, await_points, open_accelerator
from unjam.loader.device.copy_count import CopyCount
from unjam.loader.device.pinning import Pinner
from unjam.loader.device.transfer import Transfer
from unjam.loader.pool.batch_result import BatchResult
from unjam.system.logs import log
from unjam.system.memory import MemoryMapping

# batches that are being copied at a time, with the one that is asked for; and how many bytes they may have together
AHEAD, MOST_BYTES = 3, 1 << 30
# tensors up to this size travel together
SMALL = 1 << 16
# the first byte of each small tensor among others is a multiple of this
_ALIGN = 64
# torch before 2.5 has it elsewhere
OutOfMemory: Any = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
# memory of closed loaders that a copy may still read, because the device did not finish in time
_kept: list[Any] = []


class RegisteredMemory:
    """Registers slots with the accelerator, each once."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._known: weakref.WeakSet[MemoryMapping] = weakref.WeakSet()
        self.refused = not accelerator.registers

    def is_direct(self, mapping: MemoryMapping | None) -> bool:
        """Whether the device reads this memory without a copy in between."""
        if mapping is None or self.refused:
            return False
        if mapping in self._known:
            return True
        # before the memory is registered: a signal handler may raise right after that
        undo = self._accelerator.undo(mapping.address)
        mapping.before_unmap[:] = [undo]
        if not self._accelerator.register(mapping.address, mapping.size):
            mapping.before_unmap.clear()
            self.refused = True
            log.warning(
                "the device's driver does not register %s bytes of memory, perhaps because of a limit on locked memory: "
                "batches are copied into pinned memory first",
                f"{mapping.size:,}",
            )
            return False
        self._known.add(mapping)
        return True


@dataclass(frozen=True, slots=True)
class _Moving:
    """A batch on its way: what the consumer gets, the tensors in it, and the point after them in our stream."""

    data: Any
    found: list[torch.Tensor]
    point: StreamPoint


class Mover(Transfer):
    """Copies batches, in the order in which the consumer will ask for them.

    It does not use the device before the first batch has arrived.
    """

    active = True

    def __init__(self, device: torch.device, count: CopyCount) -> None:
        super().__init__()
        self._device = device
        self._count = count
        self._pinner: Pinner | None = None  # for memory that the device does not read directly
        self._owner_pid = os.getpid()
        self._ahead: dict[int, DeviceBatch] = {}  # arrived and not asked for
        # batches whose memory the device may still read: the points after which it does not, bytes, and the memory
        self._reading: deque[tuple[StreamPoint, int, Any]] = deque()

    @functools.cached_property
    def accelerator(self) -> Accelerator:
        """The device."""
        return open_accelerator(self._device)

    @functools.cached_property
    def memory(self) -> RegisteredMemory:
        """The memory that the device reads directly."""
        return RegisteredMemory(self.accelerator)

    # -- batches from workers ----------------------------------------------------------------------

    @override
    def wrap(self, number: int, result: BatchResult) -> BatchResult:
        if result.empty or result.raises or isinstance(result, DeviceBatch):
            return result
        known = self._ahead.get(number)
        if known is not None and known.raw is result:
            return known  # an earlier call was interrupted
        reached = result
        if self.memory.refused and self.accelerator.pins:
            if self._pinner is None:
                with self.accelerator.ours():
                    self._pinner = Pinner(None)
            reached = self._pinner.wrap(number, result)
        wrapped = DeviceBatch(reached, self, number, result)
        self._ahead[number] = wrapped
        return wrapped

    def advance(self) -> None:
        """Give back memory that was read, and begin to copy the next batches."""
        self._sweep()
        numbers = sorted(self._ahead)
        begun = [batch for batch in self._ahead.values() if batch.begun]
        room, left = MOST_BYTES - sum(batch.report.nbytes for batch in begun), AHEAD - len(begun)
        for number in numbers:
            batch = self._ahead.get(number)
            if batch is None or batch.begun:
                continue
            if number != numbers[0] and (left <= 0 or room <= 0):
                break
            left, room = left - 1, room - batch.report.nbytes
            batch.begin()

    def finish(self, data: Any) -> Any:
        """Return the batch: `on_device` was applied when its copy began."""
        return data

    def forget(self, number: int) -> None:
        """Forget a batch that was opened or will not be."""
        self._ahead.pop(number, None)

    def close(self) -> None:
        """Begin nothing more, and wait until the device reads none of our memory."""
        if os.getpid() != self._owner_pid:
            return  # a forked child must not use the device
        self._ahead.clear()
        if self._pinner is not None:
            self._pinner.close()
            self._pinner = None
        reading = list(self._reading)
        _kept.extend(reading)  # if something is raised meanwhile
        self._reading.clear()
        if await_points([point for point, _, _ in reading]):
            _kept[:] = [one for one in _kept if not any(one is other for other in reading)]
            self._reading.extend(reading)
            with contextlib.suppress(RuntimeError):  # the device has failed
                self._sweep()
            self._reading.clear()

    # -- one batch ---------------------------------------------------------------------------------

    def move(self, host: Any, mapping: MemoryMapping | None, *, pinned: bool = False, owner: Any = None) -> _Moving:
        """Begin to copy a batch, and apply the user's function to it.

        owner: keeps the memory of the batch, also if the batch is changed meanwhile.
        """
        direct = self.memory.is_direct(mapping)
        copier = _Copier(self.accelerator, mapping if direct else None, pinned=pinned)
        # the consumer's autograd modes now must not affect a batch that it gets later
        with self.accelerator.ours(), torch.inference_mode(mode=False), torch.no_grad():
            begun = self.accelerator.begin(after_consumer=copier.after_consumer(host))
            try:
                data = copier.whole(host)
                if self.on_device is not None:
                    data = self.on_device(data)
            finally:  # also if a later tensor finds no room: the first ones are being copied
                point = self.accelerator.point(begun)
                self._reading.append((point, copier.nbytes, (host, owner)))
        self._count.nbytes += copier.nbytes
        self._count.direct += copier.direct
        return _Moving(data, _unique([*copier.made, *structure.tensors(data)]), point)

    def hand_over(self, moving: _Moving) -> Any:
        """Give a batch to the consumer, whose stream waits for it."""
        self._count.batches += 1
        self._count.ready += moving.point.done()
        self.accelerator.hand_over(moving.point, moving.found)
        return moving.data

    def _sweep(self) -> None:
        """Drop what the device has read. All copies are on one stream, so they complete in order."""
        while self._reading and self._reading[0][0].done():
            point, nbytes, _ = self._reading.popleft()
            begun, done, waited = point.times()
            self._count.copied(begun, done, nbytes, waited)

    def failure(self, number: int, nbytes: int, error: Exception) -> Exception:
        """An error that names the batch."""
        request = self.requests.get(number)
        indices = (
            ", ".join(map(str, request.indices[:8])) + (", ..." if len(request.indices) > 8 else "") if request else ""
        )
        name = f"batch {request.number if request else number}" + (f" (samples {indices})" if indices else "")
        if isinstance(error, OutOfMemory):
            problem: Exception = OutOfMemory(f"{name}, {nbytes:,} bytes, does not fit on {self._device}: {error}")
            return problem
        return DeviceError(f"{name} could not be created on {self._device}: {type(error).__name__}: {error}")


class DeviceBatch(BatchResult):
    """A batch that is copied to the device. `raw`: as it arrived."""

    def __init__(self, result: BatchResult, mover: Mover, number: int, raw: BatchResult) -> None:
        self._result, self._mover, self._number, self.raw = result, mover, number, raw
        self._host: Any = None  # the open batch and what keeps its memory, until it is being copied
        self._moving: _Moving | None = None
        self._failed = False
        self.report = result.report

    @property
    def begun(self) -> bool:
        """Whether its copy has begun, or failed and waits for the consumer to ask for it."""
        return self._moving is not None or self._failed

    def begin(self) -> None:
        """Begin the copy, unless it still waits for pinned memory."""
        if self._result.ready:
            try:
                self._begin()
            except Exception:  # noqa: BLE001 - done again when the consumer asks for it: there may be room then
                self._failed = True  # without the exception: its frames refer to the iterator

    def _begin(self) -> None:
        mapping = self._result.memory
        if self._host is None:
            self._host = self._result.open_with_owner(copy=False)
        host, owner = self._host
        self._moving = self._mover.move(host, mapping, pinned=self._result.pinned, owner=owner)
        self._host = None  # the mover has it as long as the device reads it

    def open_with_owner(self, *, copy: bool) -> tuple[Any, Any]:
        """Return the batch on the device, for the consumer's current stream."""
        del copy  # the slot is free when the copy is over
        self._mover.forget(self._number)
        try:
            if self._moving is None:
                self._begin()
            assert self._moving is not None, "begun"
            return self._mover.hand_over(self._moving), None
        except Exception as error:
            raise self._mover.failure(self._number, self.report.nbytes, error) from error

    def refuse(self) -> None:
        """Give the memory back; if the copy has begun, when it is over."""
        self._mover.forget(self._number)
        if self._host is None and self._moving is None:
            self._result.refuse()
        self._host = self._moving = None


class _Copier:
    """Copies the tensors of one batch. `mapping`: memory that the device reads directly."""

    def __init__(self, accelerator: Accelerator, mapping: MemoryMapping | None, *, pinned: bool) -> None:
        self._accelerator = accelerator
        self._first, self._last = (mapping.address, mapping.address + mapping.size) if mapping is not None else (0, 0)
        self._pinned = pinned
        # by number, each tensor of the batch (kept, so that no other gets its number) and the one on the device
        self._done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.nbytes = self.direct = 0

    @property
    def made(self) -> list[torch.Tensor]:
        """The tensors on the device."""
        return [target for _, target in self._done.values()]

    def after_consumer(self, batch: Any) -> bool:
        """Whether a tensor is on the device already: what makes it may still run on the consumer's stream."""
        return any(one.device.type != "cpu" for one in structure.tensors(batch))

    def whole(self, batch: Any) -> Any:
        """Return the batch on the device."""
        found = [one for one in _unique(structure.tensors(batch)) if _is_plain(one)]
        small = [one for one in found if 0 < _bytes(one) <= SMALL and one.is_contiguous()]
        if len(small) > 1:
            self._together(small)
        return structure.apply(batch, self._tensor, self._object)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._done.get(id(tensor))
        if known is None:
            known = self._done[id(tensor)] = (tensor, self._one(tensor))
        return known[1]

    def _one(self, tensor: torch.Tensor) -> torch.Tensor:
        accelerator = self._accelerator
        self.nbytes += _bytes(tensor)
        if tensor.device.type != "cpu":
            return tensor
        if not _is_plain(tensor):
            moved: torch.Tensor = self._object(tensor)
            return moved
        source = tensor.detach()
        if self._first <= source.data_ptr() < self._last:
            self.direct += _bytes(tensor)
        elif not self._pinned and source.numel():
            source = accelerator.staged(source)
        target = accelerator.like(source)
        if source.numel():
            accelerator.copy(target, source)
        return target.requires_grad_() if tensor.requires_grad else target

    def _together(self, small: list[torch.Tensor]) -> None:
        """Copy small tensors with one transfer; on the device each is a part of one piece of memory."""
        places, total = [], 0
        for tensor in small:
            places.append(total)
            total += -(-_bytes(tensor) // _ALIGN) * _ALIGN
        staging = self._accelerator.staging(total)
        start = staging.data_ptr()
        for tensor, place in zip(small, places, strict=True):
            ctypes.memmove(start + place, tensor.data_ptr(), _bytes(tensor))
        target = self._accelerator.like(staging)
        self._accelerator.copy(target, staging)
        for tensor, place in zip(small, places, strict=True):
            # .data: autograd must not take the parts for views of one tensor
            part = target[place : place + _bytes(tensor)].view(tensor.dtype).view(tensor.shape).data
            self._done[id(tensor)] = (tensor, part.requires_grad_() if tensor.requires_grad else part)
            self.nbytes += _bytes(tensor)

    def _object(self, one: Any) -> Any:
        """Move an object with its own `.to()`: a subclass of Tensor, a batch class of the user's."""
        try:
            return one.to(self._accelerator.device, non_blocking=True)
        except TypeError:
            return one.to(self._accelerator.device)


def _unique(found: Any) -> list[torch.Tensor]:
    return list({id(one): one for one in found}.values())


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether copying its bytes is enough to copy the tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
