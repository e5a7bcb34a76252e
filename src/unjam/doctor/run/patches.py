"""Replaces attributes of torch's classes, and restores them."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """The replaced attributes, in order."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any, afterwards: Any = _MISSING) -> None:
        """Replace an attribute. `afterwards`: the value for `undo` if the owner had none itself."""
        self._done.append((owner, name, vars(owner).get(name, afterwards), value))
        setattr(owner, name, value)

    def undo(self) -> list[str]:
        """Restore the attributes; return the names of those that other code has replaced since."""
        kept = []
        while self._done:
            owner, name, before, ours = self._done.pop()
            now = vars(owner).get(name, _MISSING)
            if getattr(now, "__func__", now) is not ours:
                kept.append(f"{owner.__name__}.{name}")
            elif before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return kept


# of this process
PATCHES = Patches()
