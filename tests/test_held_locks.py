"""Which locks a thread holds, read from the lines on its stack."""

from __future__ import annotations

import pytest

from unjam.doctor.facts.held_locks import locks_acquired_at, locks_held
from unjam.system.stacks import Frame

PROGRAM = """\
def load(lock, other):
    with lock:
        work()
    with lock: work()
    with lock, \\
            other:
        work()
    lock.acquire()
    work()
    lock.release()
    work()
"""


@pytest.fixture
def frame(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return lambda line: Frame(str(path), line, "load")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (2, []),
        (3, ["lock"]),
        (4, []),  # it may still wait for the lock
        (6, ["lock"]),
        (7, ["lock", "other"]),
        (8, []),
        (9, ["lock"]),
        (11, []),
    ],
)
def test_held_locks_are_read_from_source_lines(frame, line, expected):
    assert [expression for expression, _, _ in locks_held((frame(line),), ())] == expected


@pytest.mark.parametrize(("line", "expected"), [(2, ["lock"]), (3, []), (4, ["lock"]), (6, ["other"]), (8, ["lock"])])
def test_wanted_locks_are_read_from_source_lines(frame, line, expected):
    assert locks_acquired_at(frame(line)) == expected
