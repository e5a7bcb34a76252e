"""Records what the program writes with `torch.save`: whether it is a training's state, and what it says about the loaders."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from unjam.doctor.check.target.observer import Observer, place_fields

MOST_PARTS, MOST_NUMBERS, MOST_SAVES = 20_000, 500, 200


def patch_saves(module: ModuleType, observer: Observer) -> None:
    """Patch `torch.save`."""
    save = module.save
    count = [0]

    @functools.wraps(save)
    def saved(obj: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            if observer.active and count[0] < MOST_SAVES:
                count[0] += 1
                optimizer, numbers = _contents(obj)
                # the names of the fields are those of `Saved`
                observer.write(
                    "saved", optimizer=optimizer, numbers=sorted(numbers), passes=observer.open_passes(),
                    **place_fields(sys._getframe(1)),  # noqa: SLF001 - the caller's frame
                )  # fmt: skip
        return save(obj, *args, **kwargs)

    for owner in (module, sys.modules.get("torch")):  # the second has it, too, if it was imported before
        if getattr(owner, "save", None) is save:
            vars(owner)["save"] = saved


def _contents(obj: Any) -> tuple[bool, set[int]]:
    """Whether an optimizer's state is in what is saved, and the whole numbers outside of that state."""
    waiting, parts = [obj], 0
    optimizer = False
    numbers: set[int] = set()
    while waiting and parts < MOST_PARTS:
        parts += 1
        one = waiting.pop()
        if type(one) is int:
            if len(numbers) < MOST_NUMBERS:
                numbers.add(one)
        elif isinstance(one, Mapping):
            if _is_optimizers(one):
                optimizer = True
            else:
                waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one[:1000]
    return optimizer, numbers


def _is_optimizers(state: Mapping[Any, Any]) -> bool:
    groups = state.get("param_groups")
    return "state" in state and isinstance(groups, list) and all("params" in group for group in groups)
