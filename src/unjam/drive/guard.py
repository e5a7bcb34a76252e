"""Whether loading in the training process changes the dataset.

A dataset that opens its file at the first sample opens it in whichever process loads. Where batches are made in the training process
only for a while, the open file would then be sent to workers, or inherited by them, and be shared. So what the dataset holds is
remembered before; if loading changes it, it is put back as it was, and from then on only workers load.
"""

from __future__ import annotations

import itertools
from typing import Any

MOST_OBJECTS = 200
# batches after which every one is looked at no more, and how often then
CLOSELY, LATER = 64, 256


class Guard:
    """The attributes of a dataset and of the objects that it holds, as they were."""

    def __init__(self, dataset: Any) -> None:
        self._kept: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        seen: set[int] = set()
        queue: list[tuple[str, Any]] = [("dataset", dataset)]
        while queue and len(self._kept) < MOST_OBJECTS:
            path, one = queue.pop(0)
            try:
                known = object.__getattribute__(one, "__dict__")
            except (AttributeError, TypeError):
                continue
            if id(one) in seen or not isinstance(known, dict):
                continue
            seen.add(id(one))
            self._kept.append((path, known, dict(known)))
            for name, value in itertools.islice(known.items(), 50):
                several = value[:20] if type(value) in (list, tuple) else [value]
                queue += [(f"{path}.{name}", each) for each in several if hasattr(type(each), "__dict__")]
        self._looks = 0

    def look(self) -> str:
        """What has changed, which is put back; nothing: empty."""
        self._looks += 1
        if self._looks > CLOSELY and self._looks % LATER:
            return ""
        found = ""
        for path, now, before in self._kept:
            if len(now) == len(before) and all(name in now and now[name] is value for name, value in before.items()):
                continue
            changed = [name for name in {**before, **now} if now.get(name) is not before.get(name)]
            now.clear()
            now.update(before)
            found = found or f"{path}.{changed[0]}"
        return found
