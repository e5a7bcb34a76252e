"""A file descriptor that closes itself."""

from __future__ import annotations

import os
from collections.abc import Callable


class OwnedFd(int):
    """A descriptor that is closed when its last reference is gone."""

    __slots__ = ()

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(int(self))
