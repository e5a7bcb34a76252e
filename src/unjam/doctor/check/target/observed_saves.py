"""Records calls of `torch.save`: whether they save an optimizer, and which numbers, such as the epoch or the step."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from unjam.doctor.check.target.observer import Observer, replace_everywhere, users_line
from unjam.doctor.facts.program_facts import SavedFile

MOST_PARTS, MOST_NUMBERS, MOST_SAVES = 20_000, 500, 200


def patch_saves(module: ModuleType, observer: Observer) -> None:
    """Patch `torch.save`."""
    save = module.save
    count = 0

    @functools.wraps(save)
    def saved(obj: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        with contextlib.suppress(Exception):
            if observer.active and count < MOST_SAVES:
                count += 1
                observer.record(SavedFile(*_contents(obj), tuple(observer.open_epochs()), users_line()))
        return save(obj, *args, **kwargs)

    # torch has its own reference if it was imported before
    replace_everywhere(save, "save", saved, module, sys.modules.get("torch"))


def _contents(obj: Any) -> tuple[bool, frozenset[int]]:
    """Whether the saved object contains an optimizer's state, and the whole numbers outside that state."""
    waiting, parts = [obj], 0
    has_optimizer = False
    numbers: set[int] = set()
    while waiting and parts < MOST_PARTS:
        parts += 1
        one = waiting.pop()
        if type(one) is int:
            if len(numbers) < MOST_NUMBERS:
                numbers.add(one)
        elif isinstance(one, Mapping):
            if _is_optimizer_state(one):
                has_optimizer = True
            else:
                waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one[:1000]
    return has_optimizer, frozenset(numbers)


def _is_optimizer_state(state: Mapping[Any, Any]) -> bool:
    groups = state.get("param_groups")
    return "state" in state and isinstance(groups, list) and all("params" in group for group in groups)
