"""Handles that belong to one process: opened on first use, never taken along by a fork, closed with the process.

NOTE [ One handle for each process ]

A file, an archive, a database or a client that was opened before the workers were forked is one and the same for all of them: one position, one
connection, one buffer. `per_worker` keeps how to open it in place of what was opened. Each process that uses it opens its
own; a forked child does not touch its parent's, not even to close it.
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

# every one that there is, and those that are open in this process
_all: weakref.WeakSet[PerWorker] = weakref.WeakSet()
_open: weakref.WeakSet[PerWorker] = weakref.WeakSet()
_closes_at_end: set[int] = set()


def _after_fork() -> None:
    """What was inherited is the parent's: nobody here may close it, nor flush it, nor may the interpreter when it ends."""
    for one in list(_open):
        if one._handle is not None:  # noqa: SLF001 - one of our own
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._handle))  # noqa: SLF001 - as above
            vars(one)["_parents"] = True
    _open.clear()
    for one in list(_all):
        # a thread of the parent may have held the lock
        vars(one).update(_handle=None, _pid=-1, _lock=threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        # _others: of a function with arguments, one for each; of a method, one for each object
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
                    _remember(self)
        return self._handle

    def _opened(self) -> Any:
        try:
            return self._how(*(one() if type(one) is _Weakly else one for one in self._args), **self._named)
        except Exception as error:
            if self._parents and hasattr(error, "add_note"):
                # lmdb, for one, remembers in the child what its parent has open
                error.add_note(
                    "the process that this one was forked from has it open, and some libraries refuse to open it once more then: "
                    "call .close() on it there before the workers start"
                )
            raise

    def _shut(self) -> None:
        """Close what is open here, and forget it: the next use opens anew."""
        handle, mine = self._handle, self._pid == os.getpid()
        if not mine or handle is None:
            return
        vars(self).update(_handle=None, _pid=-1)
        _open.discard(self)
        if self._close is not None:
            self._close(handle)
        elif callable(getattr(handle, "close", None)):
            handle.close()

    def close(self) -> None:
        """Close this process's handle, if it has one."""
        self._shut()

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
            return self  # of a class, or an attribute of a class that knows how to open itself
        known = id(instance) in self._others
        one = self._one_for(id(instance), _Weakly(instance))
        if not known:
            with contextlib.suppress(TypeError):  # an object that nobody can watch keeps its handle
                weakref.finalize(instance, self._others.pop, id(instance), None).atexit = False
        return one._here()  # noqa: SLF001 - one of our own

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Without arguments the handle itself; with arguments, those of the function that opens, or of the handle."""
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
            vars(self).update(_handle=None, _pid=-1)  # `with` has closed it: the next use opens anew
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
            # nobody else closes what has no `close` of its own, nor a file that nobody else holds: its entry, and the question
            if vars(self).get("_close") is not None or sys.getrefcount(vars(self)["_handle"]) <= 2:
                self._shut()
        except Exception:  # noqa: BLE001, S110 - at the interpreter's end nothing can be relied on
            pass

    def __reduce__(self) -> Any:
        name = getattr(self._how, "__qualname__", "")
        if "<locals>" not in name and not self._args:
            module = inspect.getmodule(self._how)
            if module is not None and getattr(module, name, None) is self:
                return name  # a function of a module, under this decorator: by name, as functions are
        return by_value(self)

    def __copy__(self) -> PerWorker:
        how = self.__reduce__()
        return self if isinstance(how, str) else PerWorker(*how[1])

    def __deepcopy__(self, memo: Any) -> PerWorker:
        return self.__copy__()


def by_value(one: PerWorker) -> Any:
    """How it is pickled where nobody knows it by name."""
    known = vars(one)
    return PerWorker, (_as_attribute(known["_how"]), known["_args"], known["_named"], known["_close"])


class _Attribute:
    """Something that calls itself by a name under which nobody finds it (lmdb.open, for one), by a name under which it is found."""

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


# what others ask an object for by its name
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
    """Whether it cannot be called without arguments: then those of a call are meant for it."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # some builtins do not tell
        return False
    return False


def _remember(one: PerWorker) -> None:
    _open.add(one)
    if os.getpid() not in _closes_at_end:
        _closes_at_end.add(os.getpid())
        # multiprocessing's own children end without Python's atexit, but not without this
        util.Finalize(None, _shut_all, args=(os.getpid(),), exitpriority=100)


def _shut_all(pid: int) -> None:
    if pid == os.getpid():
        for one in list(_open):
            with contextlib.suppress(Exception):  # the process ends; there is nobody to tell
                one._shut()  # noqa: SLF001 - one of our own


def per_worker(
    open_fn: Callable[..., Any], *args: Any, close: Callable[[Any], Any] | None = None, **named: Any
) -> PerWorker:
    """A handle that every process opens for itself, on first use: `per_worker(open, path, "rb")`.

    open_fn: called with `args` and `named` in each process that uses the handle. close: called with the handle when its process ends;
    by default its own `close()`.

    As an attribute it takes the place of the handle: `self.file = per_worker(h5py.File, path)`, and the rest of the code stays as it
    is; called without arguments it gives the handle itself, for code that asks for its type. As a decorator of a method it is an
    attribute that is opened on first use; of a function that needs arguments, a function that opens once for each process and for
    each arguments. It can be pickled, and what was opened stays where it is.
    """
    if not callable(open_fn):
        raise TypeError(
            f"per_worker takes what opens the handle, not the handle: per_worker(open, path), not per_worker(open(path)); "
            f"got a {type(open_fn).__qualname__}"
        )
    return PerWorker(open_fn, args, named, close)
