"""Sends an exception to another process and keeps its type, whatever arguments its constructor takes.

Pickle rebuilds an exception by calling its class with `args`. If the constructor takes other
arguments, that fails in the parent and the user's error is lost. So the worker first tries the round
trip itself. If it fails, the parent rebuilds the exception without calling its constructor. If the
class cannot be sent either, we send its name and the message.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from unjam.errors import type_name, words_of
from unjam.loader.transport import classes

# key in an exception's __dict__: the notes that unjam added
_OWN_NOTES = "__unjam_notes__"


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of the exception it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(RuntimeError):
    """Replaces an exception whose class could not be sent; the message has the class name and the text."""


@dataclass(frozen=True, slots=True)
class ExceptionRecord:
    """An exception as plain bytes and text."""

    pickled: bytes | None
    state: bytes | None
    type_name: str
    words: str
    traceback: str
    notes: tuple[str, ...] = ()

    def restore(self) -> BaseException:
        """Rebuild the exception, with the remote traceback as its cause."""
        error = self._rebuild()
        with contextlib.suppress(Exception):  # an exception may be frozen
            shown = "" if hasattr(error, "add_note") else "\n" + "\n".join(self.notes)
            error.__cause__ = RemoteTraceback(self.traceback + shown)
        add_notes(error, self.notes)
        return error

    def _rebuild(self) -> BaseException:
        with contextlib.suppress(Exception):  # the class may not be importable here; then use the text
            if self.pickled is not None:
                whole: BaseException = pickle.loads(self.pickled)
                return whole
            if self.state is not None:
                kind, args, attributes = pickle.loads(self.state)
                return _without_constructor(kind, args, attributes)
        return RemoteError(f"{self.type_name}: {self.words}")


def add_notes(error: BaseException, notes: tuple[str, ...]) -> None:
    """Add notes to an exception. Python 3.10 has no add_note: we set `__notes__` ourselves.

    A dataset may raise the same object many times, so we first remove the notes we added before.
    """
    with contextlib.suppress(Exception):  # an exception may be frozen
        held = vars(error)
        before = held.get(_OWN_NOTES, ())
        if before:
            held["__notes__"] = [note for note in held.get("__notes__", ()) if note not in before]
        for note in notes:
            if hasattr(error, "add_note"):
                error.add_note(note)
            else:
                held.setdefault("__notes__", []).append(note)
        held[_OWN_NOTES] = notes


def without_frames(error: BaseException) -> BaseException:
    """Copy an exception without its frames, for a record that outlives the exception handling."""
    other = _copy_of(error)
    cause = error.__cause__
    if not isinstance(cause, RemoteTraceback) and error.__traceback__ is not None:
        cause = RemoteTraceback("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    with contextlib.suppress(Exception):  # an exception may be frozen
        other.__cause__ = cause if isinstance(cause, RemoteTraceback) else None
    return other


def _copy_of(error: BaseException) -> BaseException:
    for make in (copy.copy, lambda one: _without_constructor(type(one), one.args, _attributes(one))):
        with contextlib.suppress(Exception):  # both ways may fail
            other: BaseException = make(error)
            if type(other) is type(error) and words_of(other) == words_of(error):
                if "__notes__" in vars(error):
                    vars(other)["__notes__"] = list(vars(error)["__notes__"])
                return other
    return RemoteError(f"{type_name(type(error))}: {words_of(error)}")


def record(error: BaseException, notes: tuple[str, ...], *, by_value: bool) -> ExceptionRecord:
    """Make a record of `error`, which user code raised in this process."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    pickled = state = None
    # Others are sent as text: SystemExit would end the training silently, KeyboardInterrupt would look like Ctrl-C.
    if isinstance(error, Exception):
        dump_functions = (classes.dumps,) if by_value else (pickle.dumps, classes.dumps)
        pickled = next(filter(None, (_pickled_if_faithful(error, dumps) for dumps in dump_functions)), None)
        if pickled is None:
            state = next(filter(None, (_pickled_state(error, dumps) for dumps in dump_functions)), None)
    return ExceptionRecord(pickled, state, type_name(type(error)), words_of(error), text, notes)


def _pickled_if_faithful(error: BaseException, dumps: Any) -> bytes | None:
    try:
        data: bytes = dumps(error)
        back = pickle.loads(data)
    except Exception:  # noqa: BLE001 - user classes may raise anything when pickled
        return None
    if type(back).__qualname__ != type(error).__qualname__:
        return None
    # A constructor with other parameters may accept `args` but build a different message: compare
    # the text. For built-in classes equal args are enough. The args differ if user code changed
    # them on an exception that keeps its text elsewhere, e.g. OSError.
    pythons_own = type(error).__module__ == "builtins" and back.args == error.args
    return data if pythons_own or words_of(back) == words_of(error) else None


def _pickled_state(error: BaseException, dumps: Any) -> bytes | None:
    try:
        data: bytes = dumps((type(error), _picklable(error.args, dumps), _picklable(_attributes(error), dumps)))
        kind, args, attributes = pickle.loads(data)
        back = _without_constructor(kind, args, attributes)
    except Exception:  # noqa: BLE001 - as above
        return None
    return data if words_of(back) == words_of(error) else None


def _picklable(parts: Any, dumps: Any) -> Any:
    """Return each part if it can be pickled, else its repr."""

    def one(part: Any) -> Any:
        try:
            pickle.loads(dumps(part))
        except Exception:  # noqa: BLE001 - as above
            return _safe_repr(part)
        return part

    return {k: one(v) for k, v in parts.items()} if isinstance(parts, dict) else tuple(one(p) for p in parts)


def _without_constructor(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    # Bypass __setattr__: an exception may be frozen.
    object.__setattr__(error, "args", args)
    for name, value in attributes.items():
        if hasattr(error, "__dict__") and name not in _slots(kind):
            error.__dict__[name] = value
        else:
            object.__setattr__(error, name, value)
    return error


def _attributes(error: BaseException) -> dict[str, Any]:
    """Return an exception's attributes, from its `__dict__` and its slots."""
    held = {name: getattr(error, name) for name in _slots(type(error)) if hasattr(error, name)}
    return {**held, **{name: value for name, value in vars(error).items() if name != _OWN_NOTES}}


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _safe_repr(part: Any) -> str:
    try:
        return repr(part)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(part).__name__}>"
