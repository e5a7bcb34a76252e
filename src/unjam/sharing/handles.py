"""Handles that belong to one process: opened on first use, never taken along by a fork, closed with the process.

NOTE [ One handle for each process ]

A file, an archive, a database or a client that was opened before the workers were forked is one and the same for all of them: one position, one
connection, one buffer. `per_worker` keeps how to open it in place of what was opened. Each process that uses it opens its
own; a forked child does not touch its parent's, not even to close it.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

_lock = threading.RLock()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
# what this process has opened, to be closed when it ends
_open: weakref.WeakSet[PerWorker] = weakref.WeakSet()


class _Weakly:
    """The object whose method opens, without keeping it."""

    def __init__(self, instance: Any) -> None:
        try:
            self._get: Callable[[], Any] = weakref.ref(instance)
        except TypeError:
            self._get = lambda: instance

    def __call__(self) -> Any:
        return self._get()


class PerWorker:
    """What `per_worker` makes. Everything that is asked of it is asked of this process's own handle."""

    def __init__(
        self, how: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], close: Callable[[Any], Any] | None
    ) -> None:
        # _others: for a function with arguments, one for each; _of: for a method, one for each object
        vars(self).update(_how=how, _args=args, _named=named, _close=close, _pid=-1, _handle=None, _others={}, _of={})
        if inspect.isfunction(how):
            vars(self).update(__doc__=how.__doc__, __module__=how.__module__)

    # -- the handle ----------------------------------------------------------------------------------------------------

    def _here(self) -> Any:
        """This process's own handle."""
        if self._pid != os.getpid():
            with _lock:
                if self._pid != os.getpid():
                    self._leave_to_parent()
                    made = self._how(*(one() if type(one) is _Weakly else one for one in self._args), **self._named)
                    vars(self).update(_handle=made, _pid=os.getpid())
                    _remember(self)
        return self._handle

    def _leave_to_parent(self) -> None:
        """What was inherited is the parent's: nobody here may close it, nor may the interpreter when it ends."""
        if self._handle is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._handle))
        vars(self)["_handle"] = None

    def _shut(self) -> None:
        handle, mine = self._handle, self._pid == os.getpid()
        vars(self).update(_handle=None, _pid=-1)
        if not mine or handle is None:
            return
        how = self._close or getattr(handle, "close", None)
        if how is not None:
            with contextlib.suppress(Exception):  # the process ends; there is nobody to tell
                how(handle) if self._close is not None else how()

    # -- as a decorator ------------------------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        one = self._of.get(id(instance))
        if one is None:
            with _lock:
                one = self._of[id(instance)] = PerWorker(self._how, (_Weakly(instance),), {}, self._close)
                with contextlib.suppress(TypeError):  # an object that nobody can watch keeps its handle
                    weakref.finalize(instance, self._of.pop, id(instance), None).atexit = False
        return one._here()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The handle itself, or the one for these arguments; what can be called is called."""
        if not self._args and not self._named and (args or named) and _takes(self._how, args, named):
            key = (args, tuple(sorted(named.items())))
            with _lock:
                one = self._others.get(key)
                if one is None:
                    one = self._others[key] = PerWorker(self._how, args, named, self._close)
            return one._here()
        handle = self._here()
        return handle(*args, **named) if args or named or callable(handle) else handle

    # -- as the handle -------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(self._here(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._here(), name, value)

    def __enter__(self) -> Any:
        # the handle stays this process's: `with` does not close it
        return self._here()

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        state = "open in this process" if self._pid == os.getpid() else "not opened in this process"
        return f"per_worker({getattr(self._how, '__qualname__', self._how)!s}, {state})"

    def __reduce__(self) -> Any:
        name = getattr(self._how, "__qualname__", "")
        if "<locals>" not in name and not self._args:
            module = inspect.getmodule(self._how)
            if module is not None and getattr(module, name, None) is self:
                return name  # a function of a module, under this decorator: by name, as functions are
        return by_value(self)

    def __deepcopy__(self, memo: Any) -> PerWorker:
        return PerWorker(self._how, self._args, self._named, self._close)

    def __copy__(self) -> PerWorker:
        return PerWorker(self._how, self._args, self._named, self._close)


def by_value(one: PerWorker) -> Any:
    """How it is pickled where nobody knows it by name."""
    return PerWorker, tuple(vars(one)[name] for name in ("_how", "_args", "_named", "_close"))


def _forward(name: str) -> Callable[..., Any]:
    def forwarded(self: PerWorker, *values: Any) -> Any:
        import operator  # noqa: PLC0415 - only these

        handle = self._here()
        method = getattr(type(handle), name, None)
        if method is None:
            return getattr(operator, name.strip("_"), lambda *_: _lacks(handle, name))(handle, *values)
        return method(handle, *values)

    forwarded.__name__ = name
    return forwarded


def _lacks(handle: Any, name: str) -> Any:
    raise TypeError(f"{type(handle).__name__} has no {name}")


for _name in ("getitem", "setitem", "delitem", "contains", "len", "iter", "next", "bool", "lt", "le", "gt", "ge"):
    setattr(PerWorker, f"__{_name}__", _forward(f"__{_name}__"))


def _truth(self: PerWorker) -> bool:
    return bool(self._here())


PerWorker.__bool__ = _truth  # type: ignore[attr-defined] # it is made above


def _takes(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **named)
    except (TypeError, ValueError):
        return False
    return True


def _remember(one: PerWorker) -> None:
    _open.add(one)
    # multiprocessing's own children end without Python's atexit, but not without this
    util.Finalize(None, _shut_all, args=(os.getpid(),), exitpriority=100)


def _shut_all(pid: int) -> None:
    if pid == os.getpid():
        for one in list(_open):
            one._shut()  # noqa: SLF001 - one of our own
        _open.clear()


def per_worker(
    open_fn: Callable[..., Any], *args: Any, close: Callable[[Any], Any] | None = None, **named: Any
) -> PerWorker:
    """A handle that every process opens for itself, on first use: `per_worker(open, path, "rb")`.

    open_fn: called with `args` and `named` in each process that uses the handle. close: called with the handle when its process ends;
    by default its own `close()`.

    As an attribute it takes the place of the handle: `self.file = per_worker(h5py.File, path)`, and the rest of the code stays as it
    is; called without arguments it gives the handle itself. As a decorator of a method it is an attribute that is opened on
    first use; of a function, a function that opens once for each process and for each arguments. It can be pickled, and what was
    opened stays where it is.
    """
    if not callable(open_fn):
        raise TypeError(
            f"per_worker takes what opens the handle, not the handle: per_worker(open, path), not per_worker(open(path)); "
            f"got a {type(open_fn).__qualname__}"
        )
    return PerWorker(open_fn, args, named, close)
