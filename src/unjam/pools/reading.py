"""What a worker's message means to the parent: an event for the engine, with what came along; or something to remember."""

from __future__ import annotations

import pickle

from unjam.engine import events as ev
from unjam.pools.hands import Hand, post
from unjam.pools.learnt import Learnt
from unjam.pools.loads import BatchLoad, Missing
from unjam.pools.protocol import Arrival, Asked
from unjam.transport.channel import Envelope
from unjam.worker import messages


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
