"""The differences between what was seen on the two sides."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One place where the two sides differ; `path` leads there from the whole of what was seen."""

    path: tuple[Any, ...]
    torchs: Any
    ours: Any

    @property
    def signature(self) -> str:
        """What kind of difference it is, without numbers: two programs with one cause have mostly the same."""
        names = [part for part in self.path if isinstance(part, str)]
        if names[0] == "seen":
            del names[1:2]  # which action it was
        return " ".join([*names, _kind(self.torchs), _kind(self.ours)])

    def __str__(self) -> str:
        path = "".join(f"[{part!r}]" for part in self.path)
        return f"at {path}\n    torch: {_cut(self.torchs)}\n    unjam: {_cut(self.ours)}"


MISSING = "(nothing)"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("error") or "".join(sorted(value)[:1]))
    return value if isinstance(value, str) and len(value) < 30 else type(value).__name__


def _cut(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 1500 else text[:700] + " ... " + text[-700:]


def differences(torchs: dict, ours: dict) -> list[Difference]:
    """All of them, the first one first."""
    if set(torchs) & {"hung", "died"} or set(ours) & {"hung", "died"}:
        return _of_ends(torchs, ours)
    found: list[Difference] = []
    for number, (one, other) in enumerate(zip(torchs["seen"], ours["seen"], strict=False)):
        _of_steps(("seen", number), one, other, found)
    for key in ("random", "warnings"):
        _walk((key,), torchs[key], ours[key], found)
    # torch leaves things behind in some programs; we may not
    _walk(("left",), {}, ours["left"], found)
    return found


def _of_ends(torchs: dict, ours: dict) -> list[Difference]:
    torchs_end, ours_end = (
        "hung" if side.get("hung") else f"died {side['died']}" if "died" in side else "came to its end"
        for side in (torchs, ours)
    )
    # a program that hangs or dies on both sides is a difference too: unjam does neither
    found = [Difference(("end",), torchs_end, ours_end)]
    if "left" in ours:
        _walk(("left",), {}, ours["left"], found)
    return found


def _of_steps(path: tuple, one: dict, other: dict, found: list) -> None:
    if "found" not in one or "found" not in other:
        _walk(path, one, other, found)
        return
    torchs, ours = one["found"], other["found"]
    if not one["ordered"]:
        if one["action"] in ("iterate", "for", "thread"):
            torchs, ours = (sorted(items, key=_place) for items in (torchs, ours))
        else:
            torchs, ours = len(torchs), len(ours)
    _walk((*path, one["action"]), torchs, ours, found)


def _place(item: Any) -> tuple[bool, str]:
    """An order for what came out of order; errors last, because the two sides word them differently."""
    return is_error(item), json.dumps(item, sort_keys=True)


def _walk(path: tuple, one: Any, other: Any, found: list) -> None:
    if is_error(one) and is_error(other):
        if one != other:
            found.append(Difference((*path, "error"), one, other))
    elif isinstance(one, dict) and isinstance(other, dict) and not (one and other and set(one).isdisjoint(other)):
        for key in {**one, **other}:
            _walk((*path, key), one.get(key, MISSING), other.get(key, MISSING), found)
    elif isinstance(one, list) and isinstance(other, list):
        for place in range(max(len(one), len(other))):
            pair = [side[place] if place < len(side) else MISSING for side in (one, other)]
            _walk((*path, place), *pair, found)
    elif one != other:
        found.append(Difference(path, one, other))


def is_error(value: Any) -> bool:
    """Whether it describes an exception."""
    return isinstance(value, dict) and "error" in value
