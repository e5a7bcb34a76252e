"""What arrives from a worker: a batch over its slot, a batch in the message, or the reason why there is none."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from unjam.loader.engine import events as ev
from unjam.loader.pool.protocol import Arrival, Asked, Facts
from unjam.loader.pool.worker_handle import Hand, post
from unjam.loader.pool.worker_reports import Learnt
from unjam.loader.transport.channel import Envelope
from unjam.loader.transport.leases import Leases
from unjam.loader.transport.unpacking import unpack
from unjam.loader.worker import messages
from unjam.loader.worker.job import Failed, failures_from
from unjam.loader.worker.messages import Made


class BatchLoad:
    """A packed batch. Opened or refused, once."""

    raises = empty = loading = False

    def __init__(self, made: Made, data: bytes, leases: Leases) -> None:
        self._made = made
        self._data = data
        self._leases = leases
        # between the loan of a slot and the batch over it, where a signal handler may raise
        self._owner: Any = None
        self._spent = False

    @property
    def facts(self) -> Facts:
        """See `Load`."""
        made = self._made
        return Facts(made.samples, made.nbytes, made.times, made.failures, None, made.profile)

    def open(self, *, copy: bool) -> Any:
        """The batch."""
        made, filling = self._made, self._made.filling
        if self._owner is not None:
            pass  # opened before, and interrupted
        elif filling is None:
            self._owner = bytearray(self._data)
        elif copy:
            self._owner = self._leases.copy_out(filling.slot, filling.generation, filling.used)
        else:
            self._owner = self._leases.borrow(filling.slot, filling.generation)
        batch = unpack(made.stream, made.stream_at, made.buffers, self._owner)
        self._owner, self._spent = None, True
        return batch

    def refuse(self) -> None:
        """Give the slot back."""
        filling = self._made.filling
        if filling is not None and not self._spent:
            self._spent = True
            self._leases.refuse(filling.slot, filling.generation)


class Missing:
    """No batch, and why: it raises the last of its failures, or every sample was skipped and it is empty."""

    def __init__(self, failures: list[Failed] | bytes, *, raises: bool, loading: bool = False) -> None:
        self._failures = failures
        self.raises = raises
        self.empty = not raises
        self.loading = loading

    @property
    def facts(self) -> Facts:
        """See `Load`."""
        return Facts(listed=failures_from(self._failures) if isinstance(self._failures, bytes) else self._failures)

    def open(self, *, copy: bool) -> Any:
        """There is nothing to open."""
        del copy
        raise AssertionError("a batch that is missing was opened")

    def refuse(self) -> None:
        """Nothing is held."""


def dump_index(index: Any) -> bytes:
    """Indices are nearly always numbers; anything else may be of a class of `__main__`."""
    if type(index) is int or (type(index) is list and set(map(type, index)) == {int}):
        return pickle.dumps(index, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(index)
    return data


def understand(hand: Hand, envelope: Envelope, learnt: Learnt) -> Arrival | None:
    """Take one message; None: nobody needs to act on it."""
    message = envelope.message
    match message:
        case messages.Made():
            return _made(hand, message, envelope.data)
        case messages.NewSlot(slot, size):
            _new_slot(hand, slot, size, envelope)
            return None
        case messages.Carried(slot, generation):
            made = hand.without_memory.pop((slot, generation))
            return _result(hand, made, BatchLoad(made.without_slot(), envelope.data, hand.leases))
        case messages.Raised(batch, loading):
            event = ev.Unready(hand.number) if batch is None else ev.Failure(hand.number, batch)
            return Arrival(event, Missing(envelope.data, raises=True, loading=loading))
        case messages.Emptied(batch):
            return Arrival(ev.Result(hand.number, batch), Missing(envelope.data, raises=False))
        case messages.Asks(batch):
            return Arrival(Asked(hand.number, batch), Missing([pickle.loads(envelope.data)], raises=False))
        case messages.Drained(batch, cut_short):
            end = ev.Exhausted(hand.number, batch, cut_short=cut_short)
            return Arrival(end, Missing(envelope.data, raises=False))
        case messages.Prepared(at, initialised):
            hand.prepared, hand.ready_at = True, at - initialised
            return Arrival(ev.Ready(hand.number))
        case messages.Imported():
            learnt.imported |= dict.fromkeys(bytes(envelope.data).decode().split("\n"))
            return None
        case messages.Mentions():
            learnt.mention(bytes(envelope.data).decode())
            return None
        case messages.Farewell():
            hand.said_farewell = True
            return Arrival(ev.Goodbye(hand.number))
    raise AssertionError(f"a worker said {message!r}")


def _made(hand: Hand, made: messages.Made, data: bytes) -> Arrival | None:
    for slot in made.retired:
        hand.leases.retire(slot)
    filling = made.filling
    if filling is not None and filling.slot in hand.unmapped:
        hand.without_memory[filling.slot, filling.generation] = made
        post(hand, messages.Carry(filling.slot, filling.generation))
        return None
    return _result(hand, made, BatchLoad(made, data, hand.leases))


def _result(hand: Hand, made: messages.Made, load: BatchLoad) -> Arrival:
    return Arrival(ev.Result(hand.number, made.batch, made.nbytes), load)


def _new_slot(hand: Hand, slot: int, size: int, envelope: Envelope) -> None:
    try:
        if envelope.fds_lost:
            raise OSError("no descriptor left")
        hand.leases.add(slot, size, envelope.fds[0])
    except OSError:
        hand.unmapped.add(slot)
