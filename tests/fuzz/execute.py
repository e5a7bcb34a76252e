"""Carries out a program with the class of one side, and writes down what is seen."""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import pickle
import random
import threading
import time
import warnings

import numpy as np
import torch

from fuzz import parts
from fuzz.build import build
from fuzz.describe import describe, describe_error
from fuzz.leftovers import Snapshot
from fuzz.program import Action, Program

# a consumer that goes on after errors stops after so many
MOST_ERRORS = 4
MOST_BATCHES = 200


def run(side: str, program: Program) -> dict:
    """Everything that is seen, as plain data."""
    parts.SETTING.clear()
    parts.SETTING["value"] = "unset"
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    np.random.seed(program.seed)
    begin = time.monotonic()
    before = Snapshot() if side == "unjam" else None
    prepared = time.monotonic()
    seen: list = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _all(side, program, seen)
    acted = time.monotonic()
    categories = sorted({_category(one) for one in told} - {""})
    left = before.added(4) if before is not None else {}
    return {
        "seconds": [
            round(end - start, 2) for start, end in ((begin, prepared), (prepared, acted), (acted, time.monotonic()))
        ],
        "seen": seen,
        "random": {
            "torch": _digest(bytes(torch.get_rng_state().numpy())),
            "python": _digest(repr(random.getstate()).encode()),
            "numpy": _digest(repr([str(part) for part in np.random.get_state()]).encode()),
        },
        "warnings": categories,
        "left": left,
    }


def _category(one):
    """The class of a warning that torch's loader gives as well."""
    text = str(one.message)
    known = ("Length of IterableDataset", "'pin_memory' argument is set")
    return f"{one.category.__name__}: {text[:24]}" if text.startswith(known) else ""


def _digest(raw):
    return hashlib.sha1(raw).hexdigest()[:12]


def _all(side, program, seen):
    loaders, iterators = [], {}
    for plan in program.loaders:
        try:
            loaders.append(build(side, plan))
            seen.append({"built": True})
        except BaseException as error:
            loaders.append(None)
            seen.append({"built": describe_error(error)})
    for action in program.actions:
        place = action.loader % len(loaders)
        if loaders[place] is None:
            continue
        found: list = []
        try:
            _ACTIONS[action.kind](loaders, place, action, found, iterators)
        except BaseException as error:
            found.append(describe_error(error))
            error.__traceback__ = None
        ordered = program.loaders[place].in_order and all(plan.in_order for plan in program.loaders)
        seen.append({"action": action.kind, "ordered": ordered, "found": found})
    for plan, loader in zip(program.loaders, loaders, strict=True):
        if plan.generator is not None and loader is not None:
            seen.append({"generator": _digest(bytes(loader.generator.get_state().numpy()))})
    iterators.clear()
    loaders.clear()
    gc.collect()


class Consumer:
    """Takes batches, keeps some of them, writes into some, and describes them late."""

    def __init__(self, action: Action, found: list):
        self.action, self.found, self.held, self.errors = action, found, [], 0

    def take(self, iterator) -> bool:
        """One batch; False at the end."""
        try:
            batch = next(iterator)
        except StopIteration:
            self.found.append("end")
            return False
        except Exception as error:
            self.found.append(describe_error(error))
            error.__traceback__ = None
            self.errors += 1
            return self.errors < MOST_ERRORS
        self.found.append({"batch": describe(batch)})
        self._keep(batch)
        return len(self.found) < MOST_BATCHES

    def _keep(self, batch):
        hold = self.action.hold
        if self.action.write:
            _scribble(batch)
        if hold == "none":
            return
        part = _first_tensor(batch) if hold == "part" else batch
        self.held.append((describe(part), part))
        if hold == "some" and len(self.held) > 3:
            self._look(self.held.pop(0))

    def _look(self, pair):
        if describe(pair[1]) != pair[0]:
            self.found.append({"changed while held": [pair[0], describe(pair[1])]})

    def done(self):
        """Look at what was held."""
        for pair in self.held:
            self._look(pair)
        self.held.clear()


def _first_tensor(batch):
    """A view of the first tensor or array of a batch."""
    if isinstance(batch, torch.Tensor):
        plain = batch.layout is torch.strided and not batch.is_nested and not batch.is_quantized
        return batch[1:] if plain and batch.dim() and len(batch) > 1 else batch
    if isinstance(batch, np.ndarray):
        return batch[1:] if batch.ndim else batch
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    for part in inner:
        found = _first_tensor(part)
        if found is not None:
            return found
    return None


def _scribble(batch):
    """Write into the tensors and arrays of a batch, where that is allowed."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        with contextlib.suppress(Exception), torch.no_grad():
            batch[...] = 1
    elif isinstance(batch, dict):
        for part in batch.values():
            _scribble(part)
    elif isinstance(batch, (list, tuple)):
        for part in batch:
            _scribble(part)


# -- actions -----------------------------------------------------------------------------------------------------------


def _iterate(loaders, place, action, found, iterators):
    consumer = Consumer(action, found)
    iterator = iter(loaders[place])
    while consumer.take(iterator):
        pass
    del iterator
    consumer.done()


def _for(loaders, place, action, found, iterators):
    for batch in loaders[place]:
        found.append({"batch": describe(batch)})


def _break(loaders, place, action, found, iterators):
    consumer = Consumer(action, found)
    iterator = iter(loaders[place])
    for _ in range(action.count):
        if not consumer.take(iterator):
            break
    del iterator
    consumer.done()


def _interleave(first, second, action, found):
    consumers = [Consumer(action, found), Consumer(action, found)]
    going = [first, second]
    while going[0] is not None or going[1] is not None:
        for number, consumer in enumerate(consumers):
            if going[number] is not None and not consumer.take(going[number]):
                going[number] = None
    for consumer in consumers:
        consumer.done()


def _two_iterators(loaders, place, action, found, iterators):
    _interleave(iter(loaders[place]), iter(loaders[place]), action, found)


def _two_loaders(loaders, place, action, found, iterators):
    other = loaders[(place + 1) % len(loaders)]
    if other is not None and len(loaders) > 1:
        _interleave(iter(loaders[place]), iter(other), action, found)


def _thread(loaders, place, action, found, iterators):
    def work():
        try:
            _iterate(loaders, place, action, found, iterators)
        except BaseException as error:
            found.append(describe_error(error))
            error.__traceback__ = None

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _pickle(loaders, place, action, found, iterators):
    try:
        loaders[place] = pickle.loads(pickle.dumps(loaders[place]))
        found.append("pickled")
    except Exception as error:
        found.append(["not pickled", type(error).__name__])


def _deepcopy(loaders, place, action, found, iterators):
    try:
        loaders[place] = copy.deepcopy(loaders[place])
        found.append("copied")
    except Exception as error:
        found.append(["not copied", type(error).__name__])


def _length(loaders, place, action, found, iterators):
    found.append(len(loaders[place]))


def _next(loaders, place, action, found, iterators):
    found.append({"batch": describe(next(iter(loaders[place])))})


def _epoch(loaders, place, action, found, iterators):
    loaders[place].dataset.epoch = action.count + 1


def _open(loaders, place, action, found, iterators):
    """Begin an iteration that later actions go on with."""
    iterators[place] = iter(loaders[place])


def _some(loaders, place, action, found, iterators):
    """A few more batches of the iteration that was begun."""
    if place in iterators:
        consumer = Consumer(action, found)
        for _ in range(action.count):
            if not consumer.take(iterators[place]):
                break
        consumer.done()


def _drop(loaders, place, action, found, iterators):
    iterators.pop(place, None)
    gc.collect()


def _draw(loaders, place, action, found, iterators):
    """The program itself draws random numbers between two actions."""
    found.append([random.random(), float(np.random.rand()), float(torch.rand(()))])


_ACTIONS = {
    "iterate": _iterate,
    "for": _for,
    "break": _break,
    "two iterators": _two_iterators,
    "two loaders": _two_loaders,
    "thread": _thread,
    "pickle": _pickle,
    "deepcopy": _deepcopy,
    "length": _length,
    "next": _next,
    "epoch": _epoch,
    "open": _open,
    "some": _some,
    "drop": _drop,
    "draw": _draw,
}
