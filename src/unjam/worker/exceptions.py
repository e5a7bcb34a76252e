"""An exception across the process border, with its own type whatever its constructor takes.

Pickle rebuilds an exception by calling its class with `args`; a constructor that takes something else fails there, in the
parent, and the user's error is lost. So the worker tries the whole way itself, and where that fails the exception is
rebuilt without its constructor, and where even its class cannot travel its words do.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from unjam.transport import classes


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of the exception it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class RemoteError(RuntimeError):
    """Stands for an exception whose own class could not travel; its name and words are in the message."""


@dataclass(frozen=True, slots=True)
class ExceptionRecord:
    """An exception as plain bytes and words."""

    pickled: bytes | None
    state: bytes | None
    type_name: str
    words: str
    traceback: str
    notes: tuple[str, ...] = ()

    def restore(self) -> BaseException:
        """The exception itself, with the remote traceback as its cause."""
        error = self._rebuild()
        with contextlib.suppress(Exception):  # an exception may be frozen
            error.__cause__ = RemoteTraceback(self.traceback)
            add_notes(error, self.notes)
        return error

    def _rebuild(self) -> BaseException:
        with contextlib.suppress(Exception):  # the class may not be importable here; its words are
            if self.pickled is not None:
                whole: BaseException = pickle.loads(self.pickled)
                return whole
            if self.state is not None:
                kind, args, attributes = pickle.loads(self.state)
                return _without_constructor(kind, args, attributes)
        return RemoteError(f"{self.type_name}: {self.words}")


def add_notes(error: BaseException, notes: tuple[str, ...]) -> None:
    """Add what is known to an exception, as Python 3.11 and later show it."""
    for note in notes:
        if hasattr(error, "add_note"):
            error.add_note(note)


def forget_frames(error: BaseException) -> None:
    """Keep an exception's traceback as text only: its frames hold everything that the failed call held."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    with contextlib.suppress(Exception):  # an exception may be frozen
        error.__traceback__ = error.__context__ = None
        error.__cause__ = RemoteTraceback(text)


def twin(error: BaseException) -> BaseException:
    """Another exception like this one, without its frames: for a record that outlives the handling of the first."""
    try:
        other = _without_constructor(type(error), error.args, dict(vars(error)))
    except Exception:  # noqa: BLE001 - an exception may refuse to be made this way
        other = RemoteError(f"{type_name(type(error))}: {_words(error)}")
    cause = error.__cause__
    if not isinstance(cause, RemoteTraceback) and error.__traceback__ is not None:
        cause = RemoteTraceback("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    with contextlib.suppress(Exception):  # an exception may be frozen
        other.__cause__ = cause if isinstance(cause, RemoteTraceback) else None
    return other


def type_name(kind: type) -> str:
    """A class by its full name; built-in ones by their short one."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def record(error: BaseException, notes: tuple[str, ...], *, by_value: bool) -> ExceptionRecord:
    """Take down `error`, which user code raised here."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    pickled = state = None
    for dumps in _ways(by_value=by_value):
        pickled = _whole(error, dumps)
        if pickled is not None:
            break
    if pickled is None:
        for dumps in _ways(by_value=by_value):
            state = _state(error, dumps)
            if state is not None:
                break
    if not isinstance(error, Exception):
        # SystemExit would end the training without a word, KeyboardInterrupt would look like the user's Ctrl-C
        pickled = state = None
    return ExceptionRecord(pickled, state, type_name(type(error)), _words(error), text, notes)


def _ways(*, by_value: bool) -> tuple[Any, ...]:
    return (classes.dumps,) if by_value else (pickle.dumps, classes.dumps)


def _whole(error: BaseException, dumps: Any) -> bytes | None:
    try:
        data: bytes = dumps(error)
        back = pickle.loads(data)
    except Exception:  # noqa: BLE001 - user classes raise anything from their reductions
        return None
    # a constructor that takes something else may also succeed and mean another thing
    return data if type(back).__qualname__ == type(error).__qualname__ and _words(back) == _words(error) else None


def _state(error: BaseException, dumps: Any) -> bytes | None:
    try:
        data: bytes = dumps((type(error), _picklable(error.args, dumps), _picklable(vars(error), dumps)))
        kind, args, attributes = pickle.loads(data)
        _without_constructor(kind, args, attributes)
    except Exception:  # noqa: BLE001 - as above
        return None
    return data


def _picklable(parts: Any, dumps: Any) -> Any:
    """Each part if it can travel, its repr if not."""

    def one(part: Any) -> Any:
        try:
            pickle.loads(dumps(part))
        except Exception:  # noqa: BLE001 - as above
            return _safe_repr(part)
        return part

    return {k: one(v) for k, v in parts.items()} if isinstance(parts, dict) else tuple(one(p) for p in parts)


def _without_constructor(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    # not by assignment: an exception may be frozen
    object.__setattr__(error, "args", args)
    error.__dict__.update(attributes)
    return error


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        return "<no text: its __str__ raised>"


def _safe_repr(part: Any) -> str:
    try:
        return repr(part)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(part).__name__}>"
