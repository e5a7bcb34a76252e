"""The command: an error log as tables."""

from __future__ import annotations

import json

import pytest

from faulty import Broken, Sour
from support import python
from unjam import DataLoader, __version__


def run(*arguments):
    return python(["-m", "unjam", *map(str, arguments)])


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "errors.jsonl"
    bad = {3: ValueError("bad 3"), 4: ValueError("bad 4"), 17: Sour("x", 1), 20: None}
    list(DataLoader(Broken(bad), batch_size=4, num_workers=2, on_error="skip", error_log=path))
    return path


def test_errors_by_cause_sample_and_worker(log):
    done = run("errors", log)
    assert done.returncode == 1, done.stderr
    text = done.stdout
    assert "by cause" in text
    assert "by sample" in text
    assert "by worker" in text
    row = next(line for line in text.splitlines() if "ValueError: bad #" in line)
    assert row.split()[0] == "2", "two failures of one cause"
    assert "faulty.py:" in row
    assert "3, 4" in row
    assert "skip 2" in row


def test_one_table_only(log):
    done = run("errors", log, "--by", "worker")
    assert "by worker" in done.stdout
    assert "by cause" not in done.stdout
    assert run("errors", log, "--by", "colour").returncode == 2


def test_errors_as_json(log, tmp_path):
    out = tmp_path / "out.json"
    assert run("errors", log, "--json", out).returncode == 1
    found = json.loads(out.read_text())
    assert found["incidents"] == 4
    assert {group["name"]: group["count"] for group in found["by_cause"]}["ValueError: bad #"] == 2
    assert json.loads(run("errors", log, "--json", "-").stdout) == found


def test_a_log_that_is_being_written_can_be_read(log):
    with open(log, "a") as file:
        file.write('{"kind": "sample", "wh')
    done = run("errors", log)
    assert done.returncode == 1
    assert "1 lines could not be read" in done.stdout


def test_what_is_no_log(tmp_path):
    assert run("errors", tmp_path / "nothing.jsonl").returncode == 2
    assert "cannot be read" in run("errors", tmp_path / "nothing.jsonl").stderr
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    assert "is no error log" in run("errors", other).stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    done = run("errors", empty)
    assert done.returncode == 0
    assert "no failures" in done.stdout


def test_version_and_help():
    assert run("--version").stdout.strip() == f"unjam {__version__}"
    assert "errors" in run("--help").stdout
