"""An exception in one line: torch wraps what a worker raises."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from unjam.doctor.facts.exception_line import exception_line, first_line


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def chained():
    try:
        {}["key"]
    except KeyError:
        raise RuntimeError("unable to write\nto file: the second line") from None


def chained_aloud():
    try:
        raise ValueError("the first")
    except ValueError as first:
        raise RuntimeError("the second: really") from first


def wrapped(raises):
    try:
        raises()
    except Exception:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(Exception) as caught:
        wrapper.reraise()
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    ("raises", "want"),
    [
        (chained, "unable to write"),
        (chained_aloud, "the second: really"),
        (lambda: "ab".index("c"), "substring not found"),
        (lambda: (_ for _ in ()).throw(OddError(1, 2)), "1 and 2"),
        (lambda: (_ for _ in ()).throw(ValueError()), "ValueError"),
        (lambda: {}["name"], "'name'"),
    ],
)
def test_worker_exceptions_are_unwrapped_to_their_own_message(raises, want):
    type_name, message = wrapped(raises)
    assert message.startswith("Caught ")
    assert first_line(message) == want
    assert exception_line(type_name, message) == f"{type_name}: {want}"


def test_other_exceptions_are_unchanged():
    assert exception_line("ValueError", "") == "ValueError"
    assert exception_line("ValueError", "\n  one\ntwo") == "ValueError: one"
    assert first_line("Caught in the act") == "Caught in the act"
