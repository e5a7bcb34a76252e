"""Stops a program at its first iter() of a torch DataLoader, and notes every loader created until then."""

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


class StopProgram(SystemExit):
    """Raised from iter() when the doctor is done; the program then exits as after sys.exit()."""


def is_probe(loader: Any) -> bool:
    """Whether unjam created this loader for its own use."""
    return type(getattr(loader, "dataset", None)).__module__ == "unjam.system.torch_private"


@dataclass
class FirstIterHook:
    """Patches torch's DataLoader in this process."""

    on_first_iter: Callable[[Any, FrameType], None]
    pid: int = field(default_factory=os.getpid)
    made: weakref.WeakKeyDictionary[Any, Place | None] = field(default_factory=weakref.WeakKeyDictionary)
    open: bool = True  # False after the first iter(): later calls pass

    def install(self) -> None:
        """Patch torch now if it is imported, otherwise when the program imports it."""
        after_import("torch.utils.data.dataloader", self._patch)

    def _patch(self, module: ModuleType) -> None:
        loader, base = module.DataLoader, module._BaseDataLoaderIter  # noqa: SLF001
        init, iterate, begin = loader.__init__, loader.__iter__, base.__init__

        @functools.wraps(init)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            if self._is_active() and not is_probe(this):
                self.made[this] = users_place(sys._getframe(1))  # noqa: SLF001

        @functools.wraps(iterate)
        def iterated(this: Any) -> Any:
            self._stop_once(this)
            return iterate(this)

        @functools.wraps(begin)
        def begun(this: Any, its_loader: Any, *args: Any, **kwargs: Any) -> None:
            self._stop_once(its_loader)  # some frameworks create torch's iterators directly
            begin(this, its_loader, *args, **kwargs)

        loader.__init__, loader.__iter__, base.__init__ = made, iterated, begun

    def _is_active(self) -> bool:
        return self.open and os.getpid() == self.pid

    def _stop_once(self, loader: Any) -> None:
        if self._is_active() and not is_probe(loader):
            self.on_first_iter(loader, sys._getframe(2))  # noqa: SLF001
