"""Which of a dataset's containers the workers share, and what is known about each.

NOTE [ Shared containers ]

`share_dataset="auto"` moves large plain containers in the dataset's attributes (exact lists, dicts and tuples of Python's own values) into
shared buffers, for the workers only: this process keeps what it has. Arrays and tensors need nothing: they lie once in memory
already, see NOTE [ By value ]. A dry run comes first, see NOTE [ Dry run ]; what is left alone is said, with the reason. At every
start of workers a container is compared with what was written, since the program may have changed it.
"""

from __future__ import annotations

import operator
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from unjam.logs import log
from unjam.sharing.dicts import SharedDict, make_dict
from unjam.sharing.exact import Ties
from unjam.sharing.lists import SharedList
from unjam.sharing.lists import make as make_list
from unjam.sharing.standing import Stand
from unjam.sharing.walking import FEWEST, Slot, estimate, is_array, slots
from unjam.statistics import SharedPart, Sharing
from unjam.worker.spec import Cargo

# an item that takes more is no item of a crowd
LARGEST_ITEM = 8 << 10
# items that may have a second holder: a variable of a loop that is over
FORGIVEN = 2
# containers that take less, as Python's objects, are left where they are without a word
LARGE = 16 << 20


@dataclass(slots=True)
class Learnt:
    """What workers told of themselves: modules that they had to import, in order, and containers that they copied, with the reason."""

    imported: dict[str, None] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)
    copied: dict[str, str] = field(default_factory=dict)

    def mention(self, text: str) -> None:
        """Say something once; what comes after a colon may differ from time to time."""
        kind = text.partition(":")[0]
        if kind not in self.mentioned:
            self.mentioned.add(kind)
            log.warning("%s", text)


@dataclass(slots=True)
class _Entry:
    """A container that was looked at."""

    container: Any
    path: str
    weight: int
    stand: Stand | None = None
    before: Any = None
    reason: str = ""
    tasted: bool = False


class Shares:
    """The shared containers of a loader."""

    def __init__(self, mode: bool | str = "auto") -> None:  # noqa: FBT001 - it is the option
        self.mode = mode
        self._entries: dict[int, _Entry] = {}
        self._arrays: dict[int, tuple[str, int]] = {}
        self._places: list[Slot] = []
        self._workers = 0
        # the path of something that other processes have a part in: a dry run would take from it
        self.between_processes = ""

    def survey(self, cargo: Cargo, workers: int) -> bool:
        """Look at the dataset, and write what is new to buffers. Whether there is anything that could be shared."""
        self._workers = workers
        if self.mode is False:
            return False
        try:
            return self._survey(cargo)
        except Exception as error:  # noqa: BLE001 - objects of the user's, some of which cannot be looked at
            log.debug("the dataset could not be looked at, and nothing of it is shared: %r", error)
            self._entries, self._places = {}, []
            return False

    def _survey(self, cargo: Cargo) -> bool:
        kept, self._entries = self._entries, {}
        self._arrays, self._places, self.between_processes = {}, [], ""
        for slot in slots(cargo.dataset, "dataset"):
            value = slot.value
            if not self.between_processes and _is_between_processes(value):
                self.between_processes = slot.path
            if is_array(value):
                # of one that is not contiguous each worker gets a copy
                whole = value.is_contiguous() if hasattr(value, "is_contiguous") else value.flags.forc
                if value.nbytes >= LARGE and whole:
                    self._arrays.setdefault(id(value), (slot.path, value.nbytes))
            elif type(value) in (list, dict, tuple) and len(value) >= FEWEST:
                entry = self._entries.get(id(value)) or self._look(value, slot, kept.get(id(value)))
                if entry is not None:
                    self._entries[id(value)] = entry
                    self._places.append(slot)
                    if slot.holder is None:
                        entry.stand, entry.before, entry.reason = None, None, "it hangs in a tuple"
        return any(entry.stand is not None for entry in self._entries.values())

    def _look(self, value: Any, slot: Slot, known: _Entry | None) -> _Entry | None:
        if known is not None and known.container is value:
            if known.stand is None and known.reason:
                return known
            if known.before is not None and known.before.holds(value):
                return known
        weight = estimate(value)
        if weight < LARGE:
            return None
        entry = _Entry(value, slot.path, weight)
        # whoever says so himself need not be told what else holds its items
        ties = None if self.mode is True else Ties(FORGIVEN)
        try:
            make: Any = make_dict if type(value) is dict else make_list
            made = make(value, plain_only=True, ties=ties)
        except (TypeError, MemoryError, OSError) as error:
            # not plain; a key without a hash that every process agrees on; too much; no descriptor left
            entry.reason = str(error)
        else:
            entry.reason = self._against(value, made)
            if not entry.reason:
                entry.stand = Stand(slot.path, made, type(value).__name__)
                entry.before = Before(value, made)
        return entry

    def _against(self, value: Any, made: Any) -> str:
        """What speaks against sharing a container that can be: to read it would be slow, or it would mean something else."""
        if not made.mutable:
            return ""
        each = made.nbytes // max(1, len(value))
        if each > LARGEST_ITEM:
            return f"its items are large ({each // 1024} KB each), and each would be rebuilt when it is read"
        return ""

    @property
    def tasted(self) -> bool:
        """Whether the dry run has seen everything that would be shared."""
        return all(entry.tasted for entry in self._entries.values() if entry.stand is not None)

    def taste(self, problem: str, spoilt: dict[str, str]) -> None:
        """What the dry run says: why nothing may be shared, and why some may not, by path."""
        for entry in self._entries.values():
            entry.tasted = True
        for path, reason in spoilt.items():
            self.leave(reason, path)
        if problem:
            self.leave(problem)

    def leave(self, reason: str, path: str | None = None) -> None:
        """Do not share a container, or any."""
        for entry in self._entries.values():
            if entry.stand is not None and path in (None, entry.path):
                entry.stand, entry.before, entry.reason = None, None, reason

    def obey(self, learnt: Learnt) -> None:
        """What workers wrote to is not shared with the next ones."""
        for path, reason in learnt.copied.items():
            self.leave(reason, path)

    def by_identity(self) -> dict[int, Stand]:
        """What goes in the place of which object."""
        return {key: entry.stand for key, entry in self._entries.items() if entry.stand is not None}

    def by_place(self) -> tuple[tuple[Any, Any, Stand], ...]:
        """The same for forked workers: holder, key, and what goes there."""
        stands = self.by_identity()
        return tuple(
            (slot.holder, slot.key, stands[id(slot.value)]) for slot in self._places if id(slot.value) in stands
        )

    def report(self, learnt: Learnt) -> Sharing | None:
        """For the statistics; None where there is nothing to tell."""
        if not self._entries and not self._arrays:
            return None
        shared, left = [], []
        for entry in self._entries.values():
            kind, count = type(entry.container).__name__, len(entry.container)
            if entry.stand is None:
                left.append(SharedPart(entry.path, kind, count, entry.weight, 0, entry.reason))
                continue
            nbytes = entry.stand.shared.nbytes
            saved = max(0, entry.weight * self._workers - nbytes)
            reason = learnt.copied.get(entry.path, "")
            note = f"a worker has a copy of its own: {reason}" if reason else ""
            shared.append(SharedPart(entry.path, kind, count, nbytes, saved, note))
        arrays = [
            SharedPart(path, "array", 0, nbytes, nbytes * max(0, self._workers - 1), "")
            for path, nbytes in self._arrays.values()
        ]
        return Sharing(tuple(shared + arrays), tuple(left))

    def __reduce__(self) -> Any:
        return Shares, (self.mode,)


def _is_between_processes(value: Any) -> bool:
    """Locks, queues, counters, sockets: what one process takes, the others do not have."""
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "Tensor":
        try:
            return bool(value.is_shared())
        except (RuntimeError, NotImplementedError):  # sparse, quantized: they have no such storage
            return False
    if kind.__module__.partition(".")[0] in (
        "multiprocessing",
        "socket",
        "_socket",
        "_multiprocessing",
        "ctypes",
        "subprocess",
    ):
        return True
    if not hasattr(kind, "fileno"):  # asked of its type: an object may do something when it is asked itself
        return False
    try:
        mode = os.fstat(value.fileno()).st_mode
    except Exception:  # noqa: BLE001 - no file, or a closed one
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


class Before:
    """A container as it was when it was written to a buffer."""

    def __init__(self, container: Any, shared: SharedList | SharedDict) -> None:
        self._shared = shared
        # who holds the very same objects, none of which can change, holds the same; keys cannot change in any case
        self._keys = tuple(container) if isinstance(container, dict) or not shared.mutable else ()
        self._values = tuple(container.values()) if isinstance(container, dict) and not shared.mutable else ()

    def holds(self, container: Any) -> bool:
        """Whether it is still the same."""
        is_dict = isinstance(container, dict)
        if len(container) != len(self._shared):
            return False
        if self._keys and not all(map(operator.is_, self._keys, container)):
            return False
        if self._shared.mutable:
            return self._shared.column.holds(container.values() if is_dict else container)
        return not is_dict or all(map(operator.is_, self._values, container.values()))
