"""The command: an error log as tables."""

from __future__ import annotations

import json
import os

import pytest
import typer

from faulty import Broken, Sour
from support import python
from unjam import DataLoader, __version__
from unjam.cli import app
from unjam.cli_parsing import split_words


def run(*arguments):
    return python(["-m", "unjam", *map(str, arguments)])


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "errors.jsonl"
    bad = {3: ValueError("bad 3"), 4: ValueError("bad 4"), 17: Sour("x", 1), 20: None}
    list(DataLoader(Broken(bad), batch_size=4, num_workers=2, on_error="skip", error_log=path))
    return path


def test_errors_are_grouped_by_cause_sample_and_worker(log):
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


def test_errors_by_option_prints_one_table(log):
    done = run("errors", log, "--by", "worker")
    assert "by worker" in done.stdout
    assert "by cause" not in done.stdout
    assert run("errors", log, "--by", "colour").returncode == 2


def test_errors_are_written_as_json(log, tmp_path):
    out = tmp_path / "out.json"
    assert run("errors", log, "--json", out).returncode == 1
    found = json.loads(out.read_text())
    assert found["incidents"] == 4
    assert {group["name"]: group["count"] for group in found["by_cause"]}["ValueError: bad #"] == 2
    assert json.loads(run("errors", log, "--json", "-").stdout) == found


def test_a_half_written_log_can_be_read(log):
    with open(log, "a") as file:
        file.write('{"kind": "sample", "wh')
    done = run("errors", log)
    assert done.returncode == 1
    assert "1 line could not be read" in done.stdout


def test_files_that_are_not_error_logs_are_rejected(tmp_path):
    assert run("errors", tmp_path / "nothing.jsonl").returncode == 2
    assert "cannot be read" in run("errors", tmp_path / "nothing.jsonl").stderr
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    assert "is not an error log" in run("errors", other).stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    done = run("errors", empty)
    assert done.returncode == 0
    assert "no failures" in done.stdout


def test_version_and_help():
    assert run("--version").stdout.strip() == f"unjam {__version__}"
    assert "errors" in run("--help").stdout


# -- exit codes: 0 nothing found, 1 something found, 2 it could not be done ----------------------------------------------------

ENDS = {
    "os._exit": "import os; os._exit(5)",
    "segfault": "import os, signal; signal.signal(signal.SIGSEGV, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGSEGV)",
    "no loader": "x = 1",
    "error": "raise SystemExit(1)",
}


@pytest.mark.parametrize(
    ("end", "words"),
    [("os._exit", ("tune",)), ("os._exit", ("check",)), ("segfault", ("check", "--no-watch")), ("segfault", ("tune",)), ("no loader", ("check",)), ("error", ("check", "--no-watch"))],
)  # fmt: skip
def test_a_program_that_exits_early_exits_with_2(tmp_path, end, words):
    (tmp_path / "program.py").write_text(ENDS[end])
    done = python(["-m", "unjam", *words, "program.py"], cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "before it iterated a DataLoader" in done.stderr
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last):\n  File", "")
    told = {"os._exit": "exit code 5", "segfault": "SIGSEGV"}.get(end, "")
    assert told in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "nothing.py"), ("check", "program.py"), ("check", "--no-watch", "program.py"), ("check", "notebook.ipynb"),
        ("check", "--bugdet", "3", "program.py"), ("check", "--budget", "nan", "program.py"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_exit_code_comes_with_a_json_document(tmp_path, words):
    (tmp_path / "program.py").write_text("import os; os._exit(5)")
    (tmp_path / "notebook.ipynb").write_text('{"cells": 5}')
    done = python(["-m", "unjam", words[0], "--json", "-", *words[1:]], cwd=tmp_path)
    assert done.returncode == 2
    said = json.loads(done.stdout)
    assert said["found"] == 0
    assert said["error"]
    assert "Traceback" not in done.stderr


def test_usage_errors_exit_with_2(tmp_path):
    for words in (
        ("check",),
        ("no-such-command",),
        ("check", "--no-such-option", "x.py"),
        ("explain", "UJ999"),
        ("why", "2"),
    ):
        done = run(*words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    assert run("rules").returncode == 0


def test_why_rejects_kernel_threads():
    assert "kernel thread" in run("why", "2").stderr or "no process" in run("why", "2").stderr


def test_errors_rejects_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = run("errors", tmp_path / "pipe")
    assert done.returncode == 2
    assert "pipe" in done.stderr


def test_an_internal_error_is_not_a_finding(tmp_path):
    code = "from unjam import cli; cli.__version__ = property; from unjam.__main__ import main; import sys; sys.argv = ['unjam', 'check', 'x']\n"
    code += "import unjam.doctor.check.command.check as c\ndef fail(*a, **k): raise ZeroDivisionError\nc.check_program = fail\nmain()"
    done = python(["-c", code], cwd=tmp_path)
    assert done.returncode == 2
    assert "internal error in unjam" in done.stderr


def test_large_output_takes_little_memory(tmp_path):
    from unjam.system.proc_files import read_end

    path = tmp_path / "output"
    with open(path, "wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 33)
        file.write(b"the last line\n")
    assert read_end(str(path)).endswith("the last line\n")


def test_check_survives_a_program_that_empties_the_temporary_folder(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "program.py").write_text(
        "import glob, os, shutil, tempfile\n"
        "from torch.utils.data import DataLoader\n"
        "for path in glob.glob(tempfile.gettempdir() + '/*'):\n"
        "    shutil.rmtree(path, ignore_errors=True)\n"
        "for batch in DataLoader(range(8), batch_size=2, num_workers=1): pass\n"
    )
    done = python(["-m", "unjam", "check", "--budget", "6", "program.py"], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout


def test_an_invalid_command_line_writes_only_to_unjams_own_json_file(tmp_path):
    (tmp_path / "program.json").write_text("the program's")
    done = run("check", "--typo", "train.py", "--json", str(tmp_path / "program.json"))
    assert done.returncode == 2
    assert (tmp_path / "program.json").read_text() == "the program's"
    done = run("check", "--json", str(tmp_path / "ours.json"), "--typo", "train.py")
    assert done.returncode == 2
    assert "--typo" in (tmp_path / "ours.json").read_text()


@pytest.mark.parametrize("words", [["-m", "train"], ["-mtrain"], ["--module", "train"], ["--module=train"]])
def test_words_after_a_module_belong_to_it(words):
    command = typer.main.get_command(app).commands["run"]
    ours, programs = split_words(command.params, ["--observe", *words, "--epochs", "3", "-m", "x"])
    assert ours == ["--observe", *words]
    assert programs == ["--", "--epochs", "3", "-m", "x"]


@pytest.mark.parametrize("name", ["-", "facts.md"])
def test_evidence_needs_a_name_for_its_json_file(name):
    done = run("check", "--evidence", name, "train.py")
    assert done.returncode == 2
    assert "--evidence" in done.stderr
    assert not os.path.exists("-.md")
