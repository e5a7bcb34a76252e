"""The catch: the moment at which a program first iterates a torch DataLoader, and every loader it made until then."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from unjam.doctor.facts.trial import Place, users_place
from unjam.system.import_hook import after_import


class Enough(SystemExit):
    """Raised out of iter() when the doctor has seen what it needs: the program goes home as on Ctrl-C."""


@dataclass
class Hook:
    """Watches torch's DataLoader in this process."""

    catch: Callable[[Any, FrameType], None]
    pid: int = field(default_factory=os.getpid)
    made: weakref.WeakKeyDictionary[Any, Place | None] = field(default_factory=weakref.WeakKeyDictionary)
    open: bool = True  # once caught, nothing is caught again

    def install(self) -> None:
        """Now if torch is there, otherwise as soon as the program imports it."""
        after_import("torch.utils.data.dataloader", self._patch)

    def _patch(self, module: ModuleType) -> None:
        loader, base = module.DataLoader, module._BaseDataLoaderIter  # noqa: SLF001
        init, iterate, begin = loader.__init__, loader.__iter__, base.__init__

        @functools.wraps(init)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            if self._here():
                self.made[this] = users_place(sys._getframe(1))  # noqa: SLF001

        @functools.wraps(iterate)
        def iterated(this: Any) -> Any:
            self._seen(this)
            return iterate(this)

        @functools.wraps(begin)
        def begun(this: Any, its_loader: Any, *args: Any, **kwargs: Any) -> None:
            self._seen(its_loader)  # some frameworks make torch's iterators themselves
            begin(this, its_loader, *args, **kwargs)

        loader.__init__, loader.__iter__, base.__init__ = made, iterated, begun

    def _here(self) -> bool:
        return self.open and os.getpid() == self.pid

    def _seen(self, loader: Any) -> None:
        if self._here():
            self.catch(loader, sys._getframe(2))  # noqa: SLF001
