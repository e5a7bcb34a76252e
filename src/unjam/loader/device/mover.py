"""Moves batches to an accelerator ahead of the consumer. See NOTE [ From a slot to the device ]."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from unjam.errors import DeviceError
from unjam.loader.device import structure
from unjam.loader.device.accelerator import Accelerator, Mark, await_marks, open_accelerator
from unjam.loader.device.copy_count import CopyCount
from unjam.loader.device.pinning import Pinner
from unjam.loader.pool.protocol import BatchResult, Facts, Work
from unjam.system.logs import log
from unjam.system.memory import Mapping

# batches that are being copied at a time, with the one that is asked for; and how many bytes they may have together
AHEAD, MOST_BYTES = 3, 1 << 30
# tensors up to this size travel together
SMALL = 1 << 16
# the first byte of each small tensor among others is a multiple of this
_ALIGN = 64
# torch before 2.5 has it elsewhere
OutOfMemory: Any = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
# memory that a copy may still read, of loaders whose device did not come to an end
_kept: list[Any] = []


class Memory:
    """Registers slots with the accelerator, each once."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._known: weakref.WeakSet[Mapping] = weakref.WeakSet()
        self.refused = not accelerator.registers

    def is_direct(self, mapping: Mapping | None) -> bool:
        """Whether the device reads this memory without a copy in between."""
        if mapping is None or self.refused:
            return False
        if mapping in self._known:
            return True
        undo = self._accelerator.register(mapping.address, mapping.size)
        if undo is None:
            self.refused = True
            log.warning(
                "the device's driver does not register %s bytes of memory, perhaps because of a limit on locked memory: "
                "batches are copied into pinned memory first",
                f"{mapping.size:,}",
            )
            return False
        mapping.before_unmap.append(undo)
        self._known.add(mapping)
        return True


@dataclass(slots=True)
class _Moving:
    """A batch on its way: what is read from, what comes of it, and the point after it."""

    host: Any
    data: Any
    mark: Mark
    nbytes: int
    found: list[torch.Tensor] = field(default_factory=list)


class Mover:
    """Copies batches, in the order in which the consumer will ask for them.

    It touches the device when the first batch is there. `on_device`: the user's function while the
    consumer asks for a batch; see NOTE [ The end of an iterator ].
    """

    def __init__(self, device: torch.device, count: CopyCount) -> None:
        self._device = device
        self._count = count
        self._pinner: Pinner | None = None  # for memory that the device does not read directly
        self._home = os.getpid()
        self._opened: Accelerator | None = None
        self._memory: Memory | None = None
        self._ahead: dict[int, DeviceBatch] = {}  # arrived and not asked for
        self._reading: deque[_Moving] = deque()  # the device may still read their memory
        self.work: dict[int, Work] = {}  # what each batch is made of
        self.on_device: Callable[[Any], Any] | None = None

    @property
    def accelerator(self) -> Accelerator:
        """The device."""
        if self._opened is None:
            self._opened = open_accelerator(self._device)
        return self._opened

    @property
    def memory(self) -> Memory:
        """The memory that the device reads directly."""
        if self._memory is None:
            self._memory = Memory(self.accelerator)
        return self._memory

    # -- batches from workers ----------------------------------------------------------------------

    def wrap(self, number: int, result: BatchResult) -> BatchResult:
        """Return a result that gives the batch on the device when it is opened."""
        if result.empty or result.raises or isinstance(result, DeviceBatch):
            return result
        if self.memory.refused and self.accelerator.pins:
            self._pinner = self._pinner or Pinner(None)
            result = self._pinner.wrap(number, result)
        wrapped = DeviceBatch(result, self, number)
        self._ahead[number] = wrapped
        return wrapped

    def advance(self) -> None:
        """Give back memory that was read, and begin to copy the next batches."""
        self._sweep()
        room = MOST_BYTES
        for number in sorted(self._ahead)[:AHEAD]:
            batch = self._ahead[number]
            if room <= 0:
                break
            room -= batch.facts.nbytes
            batch.begin()

    def forget(self, number: int) -> None:
        """A batch was asked for, or nobody wants it."""
        self._ahead.pop(number, None)

    def close(self) -> None:
        """Begin nothing more, and wait until the device reads none of our memory."""
        if os.getpid() != self._home:
            return  # a forked child must not use the device
        self._ahead.clear()
        if self._pinner is not None:
            self._pinner.close()
        reading = list(self._reading)
        self._reading.clear()
        if reading and not await_marks([one.mark for one in reading]):
            _kept.extend(one.host for one in reading)

    # -- one batch ---------------------------------------------------------------------------------

    def move(self, host: Any, mapping: Mapping | None, *, pinned: bool = False) -> _Moving:
        """Begin to copy a batch, and apply the user's function to it."""
        direct = self.memory.is_direct(mapping)
        copier = _Copier(self.accelerator, mapping if direct else None, pinned=pinned)
        with self.accelerator.ours():
            begun = self.accelerator.begin()
            try:
                data = copier.whole(host)
                if self.on_device is not None:
                    data = self.on_device(data)
            finally:  # also if a later tensor finds no room: the first ones are being copied
                mark = self.accelerator.mark(begun)
                moving = _Moving(host, None, mark, copier.nbytes)
                self._reading.append(moving)
        self._count.nbytes += copier.nbytes
        self._count.direct += copier.direct
        moving.data, moving.found = data, list(structure.tensors(data))
        return moving

    def hand_over(self, moving: _Moving) -> Any:
        """Give a batch to the consumer, whose stream waits for it."""
        self._count.batches += 1
        self._count.ready += moving.mark.done()
        self.accelerator.hand_over(moving.mark, moving.found)
        data, moving.data, moving.found = moving.data, None, []
        return data

    def _sweep(self) -> None:
        """Drop what the device has read. One stream: they end in order."""
        while self._reading and self._reading[0].mark.done():
            took, waited = self._reading.popleft().mark.seconds()
            self._count.seconds += took
            self._count.waited += waited

    def failure(self, number: int, nbytes: int, error: Exception) -> Exception:
        """An error that names the batch."""
        work = self.work.get(number)
        indices = ", ".join(map(str, work.indices[:8])) + (", ..." if len(work.indices) > 8 else "") if work else ""
        name = f"batch {work.number if work else number}" + (f" (samples {indices})" if indices else "")
        if isinstance(error, OutOfMemory):
            told: Exception = OutOfMemory(f"{name}, {nbytes:,} bytes, does not fit on {self._device}: {error}")
            return told
        return DeviceError(f"{name} could not be made on {self._device}: {type(error).__name__}: {error}")


class DeviceBatch:
    """A batch that is copied to the device. See `BatchResult`."""

    raises = empty = loading = False

    def __init__(self, result: BatchResult, mover: Mover, number: int) -> None:
        self._result, self._mover, self._number = result, mover, number
        self._host: Any = None
        self._is_open = False
        self._moving: _Moving | None = None
        self._error: BaseException | None = None

    @property
    def facts(self) -> Facts:
        """See `BatchResult`."""
        return self._result.facts

    def begin(self) -> None:
        """Begin to copy, unless it was begun or still waits for pinned memory."""
        if self._moving is None and self._error is None and getattr(self._result, "ready", True):
            try:
                self._begin()
            except OutOfMemory:
                pass  # there may be room when the consumer asks for it
            except Exception as error:  # noqa: BLE001 - raised when the consumer asks for this batch
                self._error = error

    def _begin(self) -> None:
        if not self._is_open:
            mapping = getattr(self._result, "memory", None)
            self._host = (self._result.open(copy=False), mapping, getattr(self._result, "pinned", False))
            self._is_open = True
        host, mapping, pinned = self._host
        self._moving = self._mover.move(host, mapping, pinned=pinned)
        self._host = None

    def open(self, *, copy: bool) -> Any:
        """Return the batch on the device, for the consumer's current stream."""
        del copy  # the slot is free when the copy is over
        self._mover.forget(self._number)
        try:
            if self._error is not None:
                raise self._error
            if self._moving is None:
                self._begin()
        except Exception as error:
            raise self._mover.failure(self._number, self.facts.nbytes, error) from error
        assert self._moving is not None, "begun above"
        return self._mover.hand_over(self._moving)

    def refuse(self) -> None:
        """Give the memory back; if the copy has begun, when it is over."""
        self._mover.forget(self._number)
        if not self._is_open:
            self._result.refuse()
        self._host = None


class _Copier:
    """Copies the tensors of one batch. `mapping`: memory that the device reads directly."""

    def __init__(self, accelerator: Accelerator, mapping: Mapping | None, *, pinned: bool) -> None:
        self._accelerator = accelerator
        self._first, self._last = (mapping.address, mapping.address + mapping.size) if mapping is not None else (0, 0)
        self._pinned = pinned
        self._done: dict[int, torch.Tensor] = {}
        self.nbytes = self.direct = 0

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
            known = self._done[id(tensor)] = self._one(tensor)
        return known

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
        elif not self._pinned:
            source = accelerator.staged(source)
        target = accelerator.like(source)
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
            part = target[place : place + _bytes(tensor)].view(tensor.dtype).view(tensor.shape)
            self._done[id(tensor)] = part.requires_grad_() if tensor.requires_grad else part
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
    """Whether its bytes are all there is to a tensor."""
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
