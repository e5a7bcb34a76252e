"""Differences that README.md and docs/ state, by name. Each is asked about one difference at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.compare import Difference, is_error
from fuzz.processes import hangs_torch
from fuzz.program import Loader, Program

Predicate = Callable[[Program, Difference, dict, dict], bool]


@dataclass(frozen=True)
class OnPurpose:
    """A difference that is meant."""

    name: str
    reason: str
    holds: Predicate


def explain(program: Program, difference: Difference, torchs: dict, ours: dict) -> OnPurpose | None:
    """The entry that states this difference."""
    return next((one for one in ON_PURPOSE if one.holds(program, difference, torchs, ours)), None)


_CAUGHT = re.compile(r"Caught (\w+) in (?:DataLoader worker process \d+|pin memory thread)")


def _words(error: dict) -> str:
    return error["words"].strip("'")


def _own_type(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)):
        return False
    caught = _CAUGHT.search(one["words"])
    if caught is None or caught[1] != other["error"] or other["cause"] != "RemoteTraceback":
        return False
    # KeyError shows its message quoted, in torch's text twice
    text = one["words"].replace("\\", "")
    return _words(other).replace("\\", "") in text


def _words_only(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """The exception holds what cannot be pickled, so that only its class's name and its words arrive."""
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)) or not _fails_with(program, "unpicklable"):
        return False
    caught = _CAUGHT.search(one["words"])
    return caught is not None and other["error"] == "RemoteError" and f".{caught[1]}: " in other["words"]


def _notes(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Without workers: the same exception, with notes."""
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)) or not other["notes"]:
        return False
    return {**one, "notes": []} == {**other, "notes": []}


def _cannot_collate(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)) or other["error"] != "CannotCollateError":
        return False
    caught = _CAUGHT.search(one["words"])
    kind = caught[1] if caught else one["error"]
    default = any(not plan.collate for plan in program.loaders)
    return default and kind in (
        "RuntimeError",
        "TypeError",
        "ValueError",
        "AttributeError",
        "KeyError",
        "NotImplementedError",
    )


def _collate_words(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Tensors of different sizes, put together by the user's call of default_collate: torch speaks of a storage, we of sizes."""
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)) or other["error"] != "RuntimeError":
        return False
    return "resize storage that is not resizable" in one["words"] and "stack expects each tensor" in other["words"]


def _sends_more(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Tensors that torch's worker cannot stack into shared memory, or its consumer not rebuild: quantised, lazy views."""
    if "seen" not in difference.path:
        return False
    if not torchs["seen"][difference.path[1]].get("ordered", True):
        # without in_order only the number of batches is compared, or errors come last
        return any(map(_cannot_send, torchs["seen"][difference.path[1]].get("found", [])))
    return _cannot_send(difference.torchs) and not is_error(difference.ours)


def _cannot_send(item: object) -> bool:
    if not isinstance(item, dict) or not is_error(item):
        return False
    words = item["words"]
    return "UnknownQuantizer" in words or ("in collate_tensor_fn" in words and "elem.new(storage)" in words)


def _before_an_error(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Without in_order, how many batches come before the error that ends an action is a matter of time, with torch too."""
    if "seen" not in difference.path or torchs["seen"][difference.path[1]].get("ordered", True):
        return False
    if torchs["seen"][difference.path[1]]["action"] in ("iterate", "thread"):
        return False  # these go on after an error
    steps = (side["seen"][difference.path[1]] for side in (torchs, ours))
    return all(any(map(is_error, step.get("found", []))) for step in steps)


def _names_what_ended_it(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """A persistent worker whose dataset raises when an epoch begins: torch's is gone, ours says what was raised."""
    one, other = difference.torchs, difference.ours
    if not (is_error(one) and is_error(other)) or not _worker_gone(one):
        return False
    return _at_the_beginning(other)


def _init_ends_it(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """After the error of a worker's beginning torch goes on with the other workers; we have raised it, in its place, and end."""
    places = {plan.failure.place for plan in _used(program, difference) if plan.failure is not None}
    if places.isdisjoint(("init", "iter")):
        return False
    if any(is_error(item) and _at_the_beginning(item) for item in _found_before(difference, ours)):
        # the next epoch has other workers than torch's, or the same iterator was asked once more
        return True
    if "seen" not in difference.path:
        return False
    step = difference.path[1]
    theirs, found = (side["seen"][step].get("found", []) for side in (torchs, ours))
    raised = next((at for at, item in enumerate(found) if is_error(item)), None)
    if raised is None:
        return False
    if not any(map(is_error, theirs)):
        # torch loses the error if the second takes over the workers
        return ours["seen"][step]["action"] == "two iterators"
    place = difference.path[3] if len(difference.path) > 3 else None
    return not ours["seen"][step]["ordered"] or (isinstance(place, int) and place > raised)


def _used(program: Program, difference: Difference) -> list[Loader]:
    """The loaders of the action that differs; of what is compared after all actions, every loader."""
    action = difference.path[1] - len(program.loaders) if difference.path[0] == "seen" else -1
    if not 0 <= action < len(program.actions):
        return list(program.loaders)
    first = program.actions[action].loader % len(program.loaders)
    both = program.actions[action].kind == "two loaders"
    return [program.loaders[first], *([program.loaders[(first + 1) % len(program.loaders)]] if both else [])]


def _found_before(difference: Difference, side: dict) -> list:
    """What the actions before the one that differs gave; of a difference at the end, what all of them gave."""
    until = difference.path[1] if difference.path[0] == "seen" else None
    return [item for earlier in side["seen"][:until] for item in earlier.get("found", [])]


def _after_the_sampler(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Torch asks the sampler before it hands over a batch, and loses that batch if the sampler raises; we deliver it."""
    if "seen" not in difference.path or not any(
        plan.failure is not None and plan.failure.place == "sampler" and plan.workers
        for plan in _used(program, difference)
    ):
        return False
    places = []
    for side in (torchs, ours):
        found = [*_found_before(difference, side), *side["seen"][difference.path[1]].get("found", [])]
        places.append(
            next((at for at, item in enumerate(found) if is_error(item) and "sampler" in item["words"]), None)
        )
    return places[0] is not None and places[0] == places[1]


def _at_the_beginning(error: dict) -> bool:
    return any(note.startswith("raised ") for note in error["notes"])


def _unpicklable(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    sure = any(hangs_torch(plan) for plan in program.loaders)
    return sure and difference.path == ("end",) and difference.torchs == "hung" and difference.ours == "came to its end"


def _unpicklable_batch(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """The last batch, or error, of a torch worker that ends by itself: torch loses it without a word, we raise."""
    if "seen" not in difference.path:
        return False
    theirs, found = (side["seen"][difference.path[1]].get("found", []) for side in (torchs, ours))
    if any(plan.failure is not None and plan.failure.kind == "local" and plan.workers for plan in program.loaders):
        # a class that no other process has
        return any(is_error(item) and item["error"] == "Local" for item in found) and not any(map(is_error, theirs))
    if not any(hangs_torch(plan) for plan in program.loaders):
        return False
    return any(is_error(item) and any(note.startswith("in pickle") for note in item["notes"]) for item in found)


def _torch_hangs(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """For another cause, mostly a worker that ended; the machine may also have been too slow for torch."""
    return difference.path == ("end",) and difference.torchs == "hung" and difference.ours == "came to its end"


def _fails_with(program: Program, *kinds: str) -> bool:
    return any(plan.failure is not None and plan.failure.kind in kinds for plan in program.loaders)


def _stop_iteration(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Torch ends the epoch there; we raise, and what follows in that action is more than torch gave."""
    places = {plan.failure.place for plan in program.loaders if plan.failure is not None}
    if (
        not _fails_with(program, "stop iteration")
        or places.isdisjoint(("getitem", "collate"))
        or "seen" not in difference.path
    ):
        return False
    found = [*_found_before(difference, ours), *ours["seen"][difference.path[1]].get("found", [])]
    return any(is_error(item) and "raised StopIteration" in item["words"] for item in found)


def _system_exit(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Torch's worker ends, and with it the epoch and what it had not handed over; ours raises, names SystemExit and goes on."""
    if not _fails_with(program, "system exit") or "seen" not in difference.path:
        return False
    step = difference.path[1]
    named = [*_found_before(difference, ours), *ours["seen"][step].get("found", [])]
    gone = [*_found_before(difference, torchs), *torchs["seen"][step].get("found", [])]
    return any(is_error(item) and "SystemExit" in item["words"] for item in named) or any(
        is_error(item) and _worker_gone(item) for item in gone
    )


def _worker_gone(error: dict) -> bool:
    kinds = ("EOFError", "ConnectionResetError", "ConnectionRefusedError", "FileNotFoundError")
    return error["error"] in kinds or "exited unexpectedly" in error["words"]


def _ships_more(program: Program, difference: Difference, torchs: dict, ours: dict) -> bool:
    """Torch cannot send a lambda, a lock or a local class by spawn; we can."""
    plans = [plan for plan in program.loaders if plan.workers and plan.method in ("spawn", "forkserver")]
    return bool(plans) and is_error(difference.torchs) and "pickle" in difference.torchs["words"].lower()


ON_PURPOSE = (
    OnPurpose(
        "exceptions keep their type",
        "a worker's exception arrives as itself, its traceback as its cause; torch makes a new one with the traceback as text",
        _own_type,
    ),
    OnPurpose(
        "exceptions that cannot be pickled arrive as words",
        "RemoteError names the class and has its words; torch raises another of the class with the traceback as text",
        _words_only,
    ),
    OnPurpose("exceptions have notes", "the same exception, with notes that name the sample", _notes),
    OnPurpose(
        "collate names the sample",
        "where default collate fails, CannotCollateError names the odd sample",
        _cannot_collate,
    ),
    OnPurpose("unjam sends more tensors", "what torch gives without workers comes from workers too", _sends_more),
    OnPurpose("what comes before an error", "has no order without in_order", _before_an_error),
    OnPurpose("collate names the sizes", "where torch's own says that a storage is not resizable", _collate_words),
    OnPurpose(
        "an error before the first sample is named",
        "torch only says that a worker exited unexpectedly",
        _names_what_ended_it,
    ),
    OnPurpose("an error before the first sample ends the epoch", "torch goes on without that worker", _init_ends_it),
    OnPurpose(
        "no batch is lost when the sampler raises",
        "torch drops the one that it was about to return",
        _after_the_sampler,
    ),
    OnPurpose("torch hangs on what cannot be pickled", "unjam raises or delivers", _unpicklable),
    OnPurpose("torch loses what cannot be pickled", "unjam raises", _unpicklable_batch),
    OnPurpose("torch hangs", "unjam comes to its end; torch waits for a worker that is gone", _torch_hangs),
    OnPurpose("StopIteration is an error", "torch ends the epoch in silence", _stop_iteration),
    OnPurpose("SystemExit in a worker is an error that names it", "torch loses the worker and the epoch", _system_exit),
    OnPurpose("unjam sends more", "what torch cannot pickle for spawn or forkserver travels by value", _ships_more),
)
