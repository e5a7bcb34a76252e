"""Handles that belong to one process: opened on first use, not inherited by fork, closed at exit.

NOTE [ One handle for each process ]

If a file, an archive, a database or a client is opened before the workers are forked, all of them
share it: one file position, one connection, one buffer. `per_worker` stores how to open the handle
instead of the handle. Each process that uses it opens its own. A forked child never touches its
parent's handle, not even to close it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

# all PerWorker objects, and those that are open in this process
_all: weakref.WeakSet[PerWorker] = weakref.WeakSet()
_open: weakref.WeakSet[PerWorker] = weakref.WeakSet()
_closes_at_end: set[int] = set()


def _after_fork() -> None:
    """Forget the parent's handles, but never free them: that would close or flush them."""
    for one in list(_open):
        if one._handle is not None:  # noqa: SLF001 - one of our own
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._handle))  # noqa: SLF001 - as above
            vars(one)["_parents"] = True
    _open.clear()
    for one in list(_all):
        # a new lock, because a thread of the parent may have held the old one
        vars(one).update(_handle=None, _pid=-1, _lock=threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _WeakInstance:
    """The object whose method opens the handle, as a weak reference where possible."""

    def __init__(self, instance: Any) -> None:
        try:
            self._get: Callable[[], Any] = weakref.ref(instance)
        except TypeError:
            self._get = lambda: instance

    def __call__(self) -> Any:
        return self._get()


class PerWorker:
    """What `per_worker` returns. It forwards every access to this process's own handle."""

    def __init__(
        self, how: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], close: Callable[[Any], Any] | None
    ) -> None:
        # _others: a PerWorker for each set of arguments (a function) or each object (a method)
        vars(self).update(
            _how=how, _args=args, _named=named, _close=close, _pid=-1, _handle=None, _others={}, _lock=threading.RLock(),
            _parents=False,
        )  # fmt: skip
        if inspect.isfunction(how):
            vars(self).update(__doc__=how.__doc__, __module__=how.__module__)
        _all.add(self)

    # -- the handle ----------------------------------------------------------------------------------------------------

    def _here(self) -> Any:
        """This process's own handle."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    vars(self).update(_handle=self._opened(), _pid=os.getpid())
                    _register_open(self)
        return self._handle

    def _opened(self) -> Any:
        try:
            return self._how(*(one() if type(one) is _WeakInstance else one for one in self._args), **self._named)
        except Exception as error:
            if self._parents and hasattr(error, "add_note"):
                # for example, lmdb in the child remembers what its parent has open
                error.add_note(
                    "the process that this one was forked from has it open, and some libraries then refuse to open it again: "
                    "call .close() on it there before the workers start"
                )
            raise

    def close(self) -> None:
        """Close this process's handle, if it has one; the next use opens a new one."""
        handle, mine = self._handle, self._pid == os.getpid()
        if not mine or handle is None:
            return
        vars(self).update(_handle=None, _pid=-1)
        _open.discard(self)
        if self._close is not None:
            self._close(handle)
        elif callable(getattr(handle, "close", None)):
            handle.close()

    def _one_for(self, key: Any, *args: Any, **named: Any) -> PerWorker:
        one: PerWorker | None = self._others.get(key)
        if one is None:
            with self._lock:
                one = self._others.get(key)
                if one is None:
                    one = self._others[key] = PerWorker(self._how, args, named, self._close)
        return one

    # -- as a decorator ------------------------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self._args or self._named:
            return self  # accessed on the class, or a class attribute with its own arguments
        known = id(instance) in self._others
        one = self._one_for(id(instance), _WeakInstance(instance))
        if not known:
            with contextlib.suppress(TypeError):  # without weak references, the handle stays
                weakref.finalize(instance, self._others.pop, id(instance), None).atexit = False
        return one._here()  # noqa: SLF001 - one of our own

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Without arguments, return the handle.

        With arguments, open a handle with them if the function needs some; else call the handle.
        """
        if not self._args and not self._named and (args or named) and _needs_arguments(self._how):
            bound = inspect.signature(self._how).bind(*args, **named)
            bound.apply_defaults()
            key = tuple((name, type(value), value) for name, value in bound.arguments.items())
            return self._one_for(key, *args, **named)._here()  # noqa: SLF001 - one of our own
        handle = self._here()
        return handle(*args, **named) if args or named else handle

    # -- as the handle -------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _ASKED_FOR:
            raise AttributeError(name)
        return getattr(self._here(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._here(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._here(), name)

    def __enter__(self) -> Any:
        return self._here().__enter__()

    def __exit__(self, *error: object) -> Any:
        handle = self._here()
        answer = handle.__exit__(*error)
        if getattr(handle, "closed", False) is True:
            vars(self).update(_handle=None, _pid=-1)  # `with` closed it; the next use opens a new one
        return answer

    def __eq__(self, other: object) -> Any:
        return self is other or self._here() == (other._here() if isinstance(other, PerWorker) else other)

    def __ne__(self, other: object) -> Any:
        return self is not other and self._here() != (other._here() if isinstance(other, PerWorker) else other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        state = "open in this process" if self._pid == os.getpid() else "not opened in this process"
        return f"per_worker({getattr(self._how, '__qualname__', self._how)!s}, {state})"

    def __del__(self) -> None:
        try:
            # Close it if the user gave `close`, or if only we hold the handle. The two references
            # are our entry and the argument of getrefcount.
            if vars(self).get("_close") is not None or sys.getrefcount(vars(self)["_handle"]) <= 2:
                self.close()
        except Exception:  # noqa: BLE001, S110 - anything can fail at interpreter exit
            pass

    def __reduce__(self) -> Any:
        name = getattr(self._how, "__qualname__", "")
        if "<locals>" not in name and not self._args:
            module = inspect.getmodule(self._how)
            if module is not None and getattr(module, name, None) is self:
                return name  # a decorated function of a module: pickle it by name, as functions are
        return by_value(self)

    def __copy__(self) -> PerWorker:
        how = self.__reduce__()
        return self if isinstance(how, str) else PerWorker(*how[1])

    def __deepcopy__(self, memo: Any) -> PerWorker:
        return self.__copy__()


def by_value(one: PerWorker) -> Any:
    """The pickle reduction for an object that cannot be found by name."""
    known = vars(one)
    return PerWorker, (_as_attribute(known["_how"]), known["_args"], known["_named"], known["_close"])


class _Attribute:
    """Pickles an object by a name that works, if its own name is wrong (for example lmdb.open)."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __reduce__(self) -> Any:
        return _attribute, self._place


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _as_attribute(how: Any) -> Any:
    if not isinstance(how, (type, types.BuiltinFunctionType)):
        return how
    found: Any = sys.modules.get(str(how.__module__))
    for part in how.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is how:
        return how
    for other, loaded in list(sys.modules.items()):
        if hasattr(loaded, "__dict__") and not other.startswith("_"):
            for alias, value in list(vars(loaded).items()):
                if value is how and alias.isidentifier():
                    return _Attribute(other, alias)
    return how


# special attributes that other libraries look up on the object itself
_ASKED_FOR = {"__array__", "__array_interface__", "__fspath__", "__length_hint__", "__dlpack__", "__dlpack_device__"}
_BUILTIN = {"len": len, "iter": iter, "next": next, "int": int, "float": float, "bool": bool, "reversed": reversed}


def _forward(name: str) -> Callable[..., Any]:
    apply: Any = _BUILTIN.get(name) or getattr(operator, name, None) or getattr(operator, f"__{name}__")

    def forwarded(self: PerWorker, *values: Any) -> Any:
        return apply(self._here(), *values)

    forwarded.__name__ = f"__{name}__"
    return forwarded


for _name in (
    "len", "iter", "next", "reversed", "int", "float", "bool", "getitem", "setitem", "delitem", "contains", "lt", "le", "gt", "ge", "add",
    "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "neg", "pos", "abs", "invert", "index",
):  # fmt: skip
    setattr(PerWorker, f"__{_name}__", _forward(_name))


def _needs_arguments(function: Callable[..., Any]) -> bool:
    """Whether a function cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # some builtins have no signature
        return False
    return False


def _register_open(one: PerWorker) -> None:
    _open.add(one)
    if os.getpid() not in _closes_at_end:
        _closes_at_end.add(os.getpid())
        # children of multiprocessing skip atexit, but they run this
        util.Finalize(None, _shut_all, args=(os.getpid(),), exitpriority=100)


def _shut_all(pid: int) -> None:
    if pid == os.getpid():
        for one in list(_open):
            with contextlib.suppress(Exception):  # the process is ending; an error helps no one
                one.close()


def per_worker(
    open_fn: Callable[..., Any], *args: Any, close: Callable[[Any], Any] | None = None, **named: Any
) -> PerWorker:
    """A handle that every process opens for itself, on first use: `per_worker(open, path, "rb")`.

    open_fn: called with `args` and `named` in each process that uses the handle.
    close: called with the handle when its process ends; by default the handle's own `close()`.

    As an attribute it replaces the handle: `self.file = per_worker(h5py.File, path)`, and the rest
    of the code stays the same. Call it without arguments to get the handle itself, for code that
    checks its type. As a decorator of a method it makes an attribute that is opened on first use.
    As a decorator of a function that needs arguments, it opens one handle for each process and each
    set of arguments. It can be pickled; the open handle stays in its process.
    """
    if not callable(open_fn):
        raise TypeError(
            f"per_worker takes the function that opens the handle, not the handle: per_worker(open, path), not "
            f"per_worker(open(path)); got a {type(open_fn).__qualname__}"
        )
    return PerWorker(open_fn, args, named, close)
